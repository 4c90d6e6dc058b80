"""The process that forks warm workers: it has loaded the interpreter, Django and the apps, and opened nothing.

Note [As a cold one]
`python -m tests.acceptance.forking` has one thread, no connection, and settings that nobody uses: each child reads
`tests.settings` anew under the environment that it is given, and everything that was computed from them is computed
again. It is told its command line as if it had been started by it, so that what starts the program once more
(the reloader) starts a fresh interpreter. It ends as any interpreter does. As with Popen its id is its own until
somebody has asked for its exit status. Different from a cold one: the seed of Python's hashes is that of its siblings.

Every test process has a forking one of its own. When it ends, in whatever way, the kernel closes its sockets, on which
the forking process ends with all that it has forked.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress

#: Of a message with a command line and an environment.
MOST_BYTES = 1 << 20


def main(descriptor: int) -> None:
    """Load everything and fork on order; in a forked process, do what was ordered."""
    line = socket.socket(fileno=descriptor)
    line.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the test's process, and that ends this one
    _load()
    if (order := _serve(line)) is not None:
        from django.core.management import execute_from_command_line

        command, environment = order
        _become(command, environment)
        execute_from_command_line(sys.argv)


def _load() -> None:
    import django

    django.setup()
    importlib.import_module("django_delayq.management.commands.delayq_worker")
    from django.core import checks

    from django_delayq.calls import registry

    checks.run_checks(databases=[])  # as the command does, which imports much more
    registry.get_tasks()
    registry._forget(setting="INSTALLED_APPS")
    assert threading.active_count() == 1, "only a process of one thread may fork"
    gc.collect()
    gc.freeze()  # else each child looks through all of it


def _serve(line: socket.socket) -> tuple[list[str], dict[str, str]] | None:
    """Fork on order and tell exit statuses. Return the order in a forked process; None in this one, at its end."""
    children: dict[socket.socket, tuple[int, int]] = {}  # the line to its WarmProcess -> id, pidfd
    living: dict[int, socket.socket] = {}  # pidfd -> that line
    while True:
        ready = select.select([line, *children, *living], [], [])[0][0]
        if ready is line:
            order, descriptors, *_ = socket.recv_fds(line, MOST_BYTES, 2)
            if not order:
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            output, theirs = descriptors
            if (pid := os.fork()) == 0:
                os.dup2(output, 1)
                os.dup2(output, 2)
                for other in (line, *children):
                    other.close()
                for descriptor in (output, theirs, *living):
                    os.close(descriptor)
                return json.loads(order)
            os.close(output)
            child = socket.socket(fileno=theirs)
            child.send(b"%d" % pid)
            children[child] = pid, os.pidfd_open(pid)
            living[children[child][1]] = child
        elif ready in living:
            ended = os.waitid(os.P_PIDFD, ready, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            with suppress(OSError):  # nobody wants to know
                living.pop(ready).send(b"%d" % status)
        else:  # it was told the exit status, or has gone without
            pid, pidfd = children.pop(ready)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            living.pop(pidfd, None)
            os.close(pidfd)
            ready.close()


def _become(command: list[str], environment: dict[str, str]) -> None:
    """Let this process be as `python -m django <command>` is at its start. See Note [As a cold one]."""
    from django.conf import empty, settings
    from django.core.cache import caches
    from django.core.signals import setting_changed
    from django.db import connections

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv = [sys.executable, "-m", "django", *command]
    sys.argv = ["django", *command]
    importlib.reload(sys.modules["tests.settings"])
    settings._wrapped = empty
    for handler in (caches, connections):
        handler.__dict__.clear()
        handler.__init__()
    for name in ("DELAYQ", "USE_TZ", "SECRET_KEY"):
        setting_changed.send(sender=None, setting=name, value=getattr(settings, name), enter=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
