"""The tasks of the fault suite. Each execution leaves a line at its start and one at its end; see harness/trace.py."""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from django_delayq import RunContext
from django_delayq.compat import task
from django_delayq.timing import to_ms


def _write(path: str, what: str, context: RunContext) -> None:
    who = f"{os.getpid()} {threading.get_native_id()}"
    line = f"{what} {context.schedule.pk} {to_ms(context.due_at)} {context.attempt} {who} {time.time():.6f}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())  # one call: lines of several processes do not mix
    finally:
        os.close(descriptor)


def _traced(context: RunContext, path: str, work: Callable[[], object]) -> None:
    _write(path, "start", context)
    work()
    _write(path, "end", context)


@task(takes_context=True)
def trace(context: RunContext, path: str, seconds: float = 0) -> None:
    """Leave a trace, and take some time."""
    _traced(context, path, lambda: time.sleep(seconds))


@task(takes_context=True)
def gated(context: RunContext, path: str, gate: str, seconds: float) -> None:
    """Leave a trace, and take some time once the file `gate` is there."""
    _traced(context, path, lambda: time.sleep(seconds if Path(gate).exists() else 0))


@task(takes_context=True)
def fail_first(context: RunContext, path: str, failures: int = 1) -> None:
    """Leave a trace, and fail in the first attempts of each point."""
    _write(path, "start", context)
    if context.attempt <= failures:
        raise RuntimeError(f"attempt {context.attempt} fails")
    _write(path, "end", context)


@task(takes_context=True)
def held_at(context: RunContext, path: str, gate: str) -> None:
    """Leave a trace, and last for as long as the file `gate` is there."""
    _traced(context, path, lambda: _last_with(Path(gate), 600))


def _last_with(gate: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while gate.exists() and time.monotonic() < end:
        time.sleep(0.02)


@task(takes_context=True)
def hold_the_gil(context: RunContext, path: str, gate: str, seconds: float) -> None:
    """Sleep in C and let no other thread of this process run meanwhile, while the file `gate` is there.

    Only where it is the first execution of its point. It stays a while afterwards, else its outcome could be there
    before the thread that renews has seen what was lost.
    """

    def work() -> None:
        if Path(gate).exists() and _first(f"{path}.{to_ms(context.due_at)}"):
            ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
            _last_with(Path(gate), seconds)

    _traced(context, path, work)


def _first(path: str) -> bool:
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@task(takes_context=True)
def end_process(context: RunContext, path: str, gate: str, how: str) -> None:
    """End the process from within, by `os._exit` or a segmentation fault, for as long as the file `gate` is there."""
    _write(path, "start", context)
    if Path(gate).exists():
        if how == "exit":
            os._exit(3)
        ctypes.string_at(0)
    _write(path, "end", context)
