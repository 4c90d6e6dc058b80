"""Runs a program in a process group of its own, and ends the group when its worker says so or is gone.

A script of the standard library alone, started with -I -S; see `process.py`, Note [The guard]. Arguments: the worker's
process id, bytes of memory (0: no limit), seconds of grace, the command line. Standard input is the worker's pipe, by
which one byte gives an order: t tells the program alone that its time is over (SIGUSR1), c that somebody stops it
(SIGUSR2), k kills the group, and anything else, or the pipe's end, ends it. The exit status is the program's, or
128 + the number of the signal that ended it, as a shell has it.
"""

import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

#: How often to look whether the worker lives, where a process that it forked holds the pipe open.
LOOK_SECONDS = 0.5
#: Between SIGTERM and SIGKILL where the group is to be killed: a program may use it to say where it was.
KILL_SECONDS = 0.25
TIMEOUT, CANCEL, KILL = b"t", b"c", b"k"
SIGNALS = {TIMEOUT: signal.SIGUSR1, CANCEL: signal.SIGUSR2}
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(worker: int, memory: int, grace: float, command: list[str]) -> int:
    """Run it to its end, or until it is to end."""
    for number in IGNORED:  # whoever means the program sends it to the program
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    group = _start(memory, command)
    told, kill_at = [0], 0.0
    while True:
        done, status = os.waitpid(group, os.WNOHANG)
        if done:
            break
        wait = LOOK_SECONDS if told else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select([woken, *told], [], [], wait)
        if woken in ready:
            os.read(woken, 512)
        if told and (0 in ready or os.getppid() != worker):
            order = os.read(0, 1) if 0 in ready else b""
            if order in SIGNALS:
                os.kill(group, SIGNALS[order])  # it is not reaped yet, so that the id is its own
                continue
            told, kill_at = [], time.monotonic() + (KILL_SECONDS if order == KILL else grace)
            _send(group, signal.SIGTERM)
        elif not told and time.monotonic() >= kill_at:
            _send(group, signal.SIGKILL)
            kill_at += LOOK_SECONDS
    _send(group, signal.SIGKILL)  # what it has left behind
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
    with suppress(OSError):  # nobody is left
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
