"""The tasks of the fault suite. Each execution leaves a line at its start and one at its end; see harness/trace.py."""

import ctypes
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings

from django_delayq import RunContext
from django_delayq.calls.compat import task
from django_delayq.calls.context import ExecutionContext
from django_delayq.recurrence import to_ms


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
    """Leave a trace, and say so, and take some time once the file `gate` is there."""
    print("held at the gate" if Path(gate).exists() else "no gate")
    _traced(context, path, lambda: time.sleep(seconds if Path(gate).exists() else 0))


@task(takes_context=True)
def fail_first(context: RunContext, path: str, failures: int = 1) -> None:
    """Leave a trace, and fail in the first attempts of each point."""
    _write(path, "start", context)
    if context.attempt <= failures:
        raise RuntimeError(f"attempt {context.attempt} fails")
    _write(path, "end", context)


@task(takes_context=True)
def fail_at(context: RunContext, path: str, gate: str) -> None:
    """Leave a trace, and fail for as long as the file `gate` is there."""
    _write(path, "start", context)
    if Path(gate).exists():
        raise RuntimeError("the gate is there")
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


def _tell_and_sleep(descriptor: int) -> None:
    os.write(descriptor, b".")
    time.sleep(600)


def _in_a_pool() -> object:
    reading, writing = os.pipe()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(abs, [-1, -2])
        pool.map_async(_tell_and_sleep, [writing] * 2, chunksize=1)
        for _ in range(2):
            os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    return found


def _children_told_to_end() -> object:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=time.sleep, args=(600,)) for _ in range(50)]
    for child in children:
        child.start()
        child.terminate()  # each at another moment of its start
    for child in children:
        child.join()
    return [child.exitcode for child in children]


def _come_back_twice() -> object:
    return os.fork() or "the child"


def _exit_in_a_fork() -> object:
    child = os.fork()
    if child == 0:
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=False).start()


def _leave_a_child() -> object:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=False)
    child.start()
    return child.pid


def _raise(record: logging.LogRecord) -> None:
    raise RuntimeError(record)


def _add_a_handler(emit: Callable[[logging.LogRecord], object]) -> None:
    handler = logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    logging.getLogger("django_delayq").addHandler(handler)


_DEEDS: dict[str, Callable[[], object]] = {
    "pool": _in_a_pool,
    "children told to end": _children_told_to_end,
    "child that comes back": _come_back_twice,
    "child that exits": _exit_in_a_fork,
    "thread": _leave_a_thread,
    "child": _leave_a_child,
    "folder": lambda: os.chdir("/"),
    "where": os.getcwd,
    "environment": os.environ.clear,
    "output": lambda: sys.stdout.close(),
    "handler that raises": lambda: _add_a_handler(_raise),
    "handler that blocks": lambda: _add_a_handler(lambda record: threading.Event().wait()),
}


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class _Untouchable(dict[str, object]):
    def items(self) -> Any:
        raise RuntimeError("do not look")


@task(takes_context=True)
def misbehave(context: RunContext, path: str) -> object:
    """Leave a trace, and do what a task should better not do: at each point something else."""
    _write(path, "start", context)
    turn = to_ms(context.due_at) // 5000 % 4
    if turn < 2:
        _DEEDS[("child that exits", "folder")[turn]]()
    _write(path, "end", context)
    if turn == 2:
        raise _Unspeakable
    return _Untouchable(a=1)


@task
def do(what: str) -> object:
    """Do something to the process that a task should better not do, or a child of it; see `_DEEDS`."""
    return _DEEDS[what]()


@task(takes_context=True)
def called_back(context: ExecutionContext, ended: str | int, due: str = "") -> None:
    """Note of which end this tells, and which job it is."""
    with (settings.SCRATCH / "called_back").open("a") as file:
        file.write(f"{ended} {context.idempotency_key}\n")


@task
def half(number: int) -> None:
    """Fail for odd numbers."""
    if number % 2:
        raise RuntimeError("odd")
