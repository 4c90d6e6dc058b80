"""Isolated tasks: they fork, leak, hang and die. Offered only where TASK_MODULES names this module, see test_f44."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.db import transaction
from opentelemetry import trace

from django_delayq import RunContext, isolated
from django_delayq.calls.compat import task
from django_delayq.exceptions import InvalidArguments, TaskTimeout
from django_delayq.models import Schedule
from tests.jobs.tasks import echo

LEAKED: list[int] = []
MEMORY_MB = 400


def _write(path: str, *pids: int) -> None:
    """Write ids of processes, all at once, for whoever waits for the file."""
    part = Path(f"{path}.part")
    part.write_text(" ".join(map(str, pids)))
    part.rename(path)


class OutOfStock(Exception):
    """An error with a constructor that takes no text."""

    def __init__(self, *, item: str) -> None:
        super().__init__()
        self.item = item

    def __str__(self) -> str:
        return f"no {self.item} left"


@isolated
@task
def leak(what: Any = None) -> list[Any]:
    """Change what the whole process shares, and say in which process that was."""
    LEAKED.append(1)
    os.environ["LEAKED"] = "1"
    threading.Thread(target=time.sleep, args=(0.01,), daemon=False).start()
    return [len(LEAKED), os.getpid(), what]


@isolated
@task(takes_context=True)
def tell(context: Any, path: str = "") -> dict[str, Any]:
    """Say all that the context has."""
    result = context.task_result
    told = {
        "key": context.idempotency_key,
        "attempt": context.attempt,
        "lost": context.lease_lost,
        "id": result.id,
        "status": result.status,
        "args": result.args,
        "kwargs": result.kwargs,
        "task": result.task.module_path,
        "queue": result.task.queue_name,
        "priority": result.task.priority,
        "workers": len(result.worker_ids),
        "errors": [error.exception_class_path for error in result.errors],
        "started": result.started_at.isoformat(),
    }
    if isinstance(context, RunContext):
        row = Schedule.objects.get(pk=context.schedule.pk)
        told |= {
            "due_at": context.due_at.isoformat(),
            "schedule": context.schedule.name,
            "same": [
                field.attname
                for field in Schedule._meta.concrete_fields
                if getattr(row, field.attname) != getattr(context.schedule, field.attname)
            ],
        }
    return told


@isolated
@task
def fail(how: str) -> None:
    """Raise an error."""
    if how == "stock":
        raise OutOfStock(item="tea")
    if how == "arguments":
        raise InvalidArguments("never like this")
    if how == "exit":
        sys.exit("enough")
    if how == "group":
        raise ExceptionGroup("both", [ValueError("one"), KeyError("two")])
    raise OSError(28, "No space left", how)


@isolated
@task(takes_context=True)
def fail_first(context: Any) -> int:
    """Fail in the first attempt."""
    if context.attempt == 1:
        raise OutOfStock(item="coffee")
    return context.attempt


@isolated
@task
def say(word: str) -> None:
    """Say something by each way."""
    print(f"printed {word}")
    print(f"to stderr {word}", file=sys.stderr)
    logging.getLogger("shop").warning("logged %s", word)
    subprocess.run([sys.executable, "-I", "-S", "-c", f"print('by a child {word}')"], check=True)


@isolated
@task
def hang(how: str, path: str) -> str:
    """Do not end by itself; the process' id is in the file."""
    _write(path, os.getpid(), os.getppid())
    print("begun")
    if how == "in C":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
        ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock, and waited for by nobody's signal
    if how == "deaf":
        while True:
            try:
                time.sleep(600)
            except TaskTimeout:
                print("not yet")
    try:
        time.sleep(600)
    except TaskTimeout:
        if how != "catches":
            raise
    return "caught"


@isolated
@task
async def wait(seconds: float, path: str = "") -> list[Any]:
    """Wait in an event loop."""
    if path:
        _write(path, os.getpid(), os.getppid())
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print("cancelled in the loop")
        raise
    return [os.getpid(), seconds]


@isolated
@task(takes_context=True)
def last(context: Any, path: str, gate: str) -> str:
    """Go on until the lease is lost, or the file `gate` is there; each leaves a line."""

    def note(what: str) -> str:
        with Path(path).open("a") as file:
            file.write(f"{what} {os.getpid()}\n")
        return what

    note("begun")
    while not context.lease_lost and not Path(gate).exists():
        time.sleep(0.02)
    return note("lost" if context.lease_lost else "ended")


@isolated
@task
def leave_a_child(path: str) -> str:
    """Start a process, and fork one, that go on in its group."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    child.returncode = 0  # nobody waits for it
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
    _write(path, os.getpid(), child.pid, forked)
    return "left"


@isolated
@task
def come_back_twice() -> str:
    """Fork, and return in both."""
    return "parent" if os.fork() else "child"


@isolated(memory_mb=MEMORY_MB)
@task
def hog(megabytes: int) -> int:
    """Take memory."""
    return len(bytearray(megabytes * 1024 * 1024))


@isolated
@task
def end(how: str) -> None:
    """End the process from within."""
    print("about to end", file=sys.stderr)
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


@isolated
@task
def enqueue(name: str) -> str:
    """Write, and enqueue after the commit, from within."""
    ids = []
    with transaction.atomic():
        Schedule.objects.filter(name=name).update(description="written elsewhere")
        transaction.on_commit(lambda: ids.append(echo.enqueue("from elsewhere").id))
    return ids[0]


@isolated
@task
def trace_id() -> str:
    """Return that of the present span."""
    return f"{trace.get_current_span().get_span_context().trace_id:x}"


@isolated
@task
def give(what: str) -> Any:
    """Return what is no JSON, or too large."""
    return {1, 2} if what == "set" else "x" * 100_000


@task
def neighbour(path: str) -> int:
    """Run in the worker's own process; says which that is."""
    with Path(path).open("a") as file:
        file.write("here\n")
    return os.getpid()
