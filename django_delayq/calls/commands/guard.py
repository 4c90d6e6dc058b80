"""Runs a program in a process group of its own, and ends the group on order or when its worker is gone.

Uses the standard library only, started with -I -S; see `child.py`, Note [A guard ends the command]. Arguments: the
worker's process id, bytes of memory (0: no limit), seconds of grace, the command line. Standard input is the worker's
pipe; one byte is an order: t reports a timeout to the program (SIGUSR1), c a cancellation (SIGUSR2), k kills the group;
any other byte, or the end of the pipe, ends it. The exit status is the program's, or 128 + the number of the signal
that ended it, as in a shell.
"""

import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

#: Seconds between checks whether the worker is alive: a process that it forked may hold the pipe open.
LOOK_SECONDS = 0.5
#: Seconds between SIGTERM and SIGKILL for the order k, in which a program may report where it was.
KILL_SECONDS = 0.25
TIMEOUT, CANCEL, KILL = b"t", b"c", b"k"
SIGNALS = {TIMEOUT: signal.SIGUSR1, CANCEL: signal.SIGUSR2}
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(worker: int, memory: int, grace: float, command: list[str]) -> int:
    for number in IGNORED:  # only the program, not its guard, reacts to signals
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    group = _start(memory, command)
    inputs, kill_at = [0], 0.0
    while True:
        done, status = os.waitpid(group, os.WNOHANG)
        if done:
            break
        wait = LOOK_SECONDS if inputs else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select([woken, *inputs], [], [], wait)
        if woken in ready:
            os.read(woken, 512)
        if inputs and (0 in ready or os.getppid() != worker):
            order = os.read(0, 1) if 0 in ready else b""
            if order in SIGNALS:
                os.kill(group, SIGNALS[order])  # not reaped yet, so the id has not been reused
                continue
            inputs, kill_at = [], time.monotonic() + (KILL_SECONDS if order == KILL else grace)
            _send(group, signal.SIGTERM)
        elif not inputs and time.monotonic() >= kill_at:
            _send(group, signal.SIGKILL)
            kill_at += LOOK_SECONDS
    _send(group, signal.SIGKILL)  # its remaining children
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _start(memory: int, command: list[str]) -> int:
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    return os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        setpgroup=0,
        setsigmask=[],
        setsigdef=[*IGNORED, signal.SIGCHLD],
    )


def _send(group: int, number: int) -> None:
    with suppress(OSError):  # the group is empty
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
