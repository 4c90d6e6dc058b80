"""Tasks that the tests schedule. What they did is told through files or the database, never through memory alone."""

import asyncio
import ctypes
import logging
import os
import sys
import threading
import time
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from django.db import connection, transaction

from django_delayq.calls.compat import TaskContext, task
from django_delayq.exceptions import TaskTimeout

if TYPE_CHECKING:
    from nowhere import Options

CALLS: list[tuple[object, ...]] = []
logger = logging.getLogger("shop.tasks")


@task
def noop() -> None:
    """Do nothing.

    A second paragraph that is not part of the summary.
    """


@task
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    CALLS.append((a, b))
    return a + b


@task
def fail(message: str = "no luck") -> None:
    """Fail."""
    raise RuntimeError(message)


@task
def flaky(path: str, failures: int) -> str:
    """Fail as often as asked, then succeed."""
    with Path(path).open("a") as file:
        file.write("x")
    count = len(Path(path).read_text())
    if count <= failures:
        raise RuntimeError(f"attempt {count} fails")
    return f"attempt {count}"


@task
def note(path: str, text: str = "ran", seconds: float = 0, gate: str = "") -> None:
    """Write a line at the start, and another at the end, once the file `gate` is there if one is named."""
    with Path(path).open("a") as file:
        file.write(f"start {text} {os.getpid()} {time.time():.6f}\n")
    time.sleep(seconds)
    while gate and not Path(gate).exists():
        time.sleep(0.02)
    with Path(path).open("a") as file:
        file.write(f"end {text} {os.getpid()} {time.time():.6f}\n")


@task
def say(text: str = "said", fail: bool = False, password: str = "") -> None:
    """Print and log, and fail if asked."""
    print(f"{text} {password}")
    print("to stderr", file=sys.stderr)
    logger.warning("logged %s with %s", text, password)
    if fail:
        raise RuntimeError(text)


@task
async def asay(text: str) -> None:
    """Print from a coroutine, and from a thread that it starts."""
    print(f"coroutine {text}")
    await asyncio.to_thread(print, f"thread {text}")


@task
def say_and_hang(text: str) -> None:
    """Print, then do not react to a timeout; print again at the end."""
    print(text)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except TaskTimeout:
            print("interrupted")
    print("too late")


@task
async def anote(path: str, text: str = "async") -> str:
    """Write a line from a coroutine."""
    await asyncio.sleep(0.01)
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
    return text


@task(takes_context=True)
def remember(context: TaskContext, path: str) -> str:
    """Write down what the context knows."""
    line = f"{context.schedule.name}|{context.due_at.isoformat()}|{context.idempotency_key}|{context.attempt}"
    with Path(path).open("a") as file:
        file.write(line + "\n")
    return line


@task(takes_context=True)
def tell_context(context: TaskContext, path: str) -> None:
    """Write down whose context it is."""
    with Path(path).open("a") as file:
        file.write(f"{type(context).__name__} {context.task_result.id} {context.task_result.backend}\n")


@task(priority=5)
def urgent(token: str = "") -> None:
    """Be before others, where the backend can."""


@task
def end_process(path: str, how: str = "exit") -> None:
    """Write a line, then end the process from within: by `os._exit`, or with a segmentation fault."""
    with Path(path).open("a") as file:
        file.write(f"start {how} {os.getpid()} {time.time():.6f}\n")
    if how == "exit":
        os._exit(3)
    ctypes.string_at(0)


@task
def hold_interpreter(path: str, seconds: float) -> None:
    """Write a line, then sleep in C without letting any other thread of this process run; only the first time."""
    first = not Path(path).exists()
    with Path(path).open("a") as file:
        file.write(f"start hold {os.getpid()} {time.time():.6f}\n")
    if first:
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@task
def haunt(path: str) -> None:
    """Leave a thread behind that never ends and keeps writing to the file."""

    def write() -> None:
        while True:
            with Path(path).open("a") as file:
                file.write(f"haunts {os.getpid()} {time.time():.6f}\n")
            time.sleep(0.05)

    threading.Thread(target=write, daemon=False).start()


@task
def spin(seconds: float, swallow: bool = False) -> str:
    """Compute for so long. `swallow` catches what goes wrong at each step, as careless code does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            sum(range(100))
        except Exception:
            if not swallow:
                raise
    return "spun"


@task
def tidy(path: str, seconds: float) -> str:
    """Compute for so long; when told to stop, clean up and return."""
    try:
        return spin.call(seconds)
    except TaskTimeout:
        Path(path).write_text("tidied")
        return "stopped early"


@task(takes_context=True)
def stubborn(context: TaskContext, path: str, gate: str) -> str:
    """Go on until the file `gate` is there, whatever happens. Then tell whether the lease was still held."""
    with Path(path).open("a") as file:
        file.write(f"start stubborn {os.getpid()}\n")
    while not Path(gate).exists():
        try:
            time.sleep(0.02)
        except BaseException:  # noqa: S112 - what this task is about
            continue
    with Path(path).open("a") as file:
        file.write(f"end {'lost' if context.lease_lost else 'held'}\n")
    return "late"


@task
def leave_transaction(seconds: float) -> None:
    """Compute for so long in a transaction, and leave it open if stopped: as an exception in its own exit would do."""
    atomic = transaction.atomic()
    atomic.__enter__()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    spin.call(seconds)
    atomic.__exit__(None, None, None)


@task
async def aspin(path: str, seconds: float) -> None:
    """Wait for so long in an event loop, and write down how it ended."""
    try:
        await asyncio.sleep(seconds)
        Path(path).write_text("slept")
    except asyncio.CancelledError:
        Path(path).write_text("cancelled")
        raise


@task
async def ablock(path: str, seconds: float) -> None:
    """Hold up the event loop for so long, as a coroutine must not."""
    Path(path).write_text("began")
    time.sleep(seconds)


@task
async def abroken() -> None:
    """Fail with a TimeoutError of its own."""
    raise TimeoutError("the bank did not answer")


@task
def speak(text: str) -> None:
    """Log something by a logger of one's own."""
    logging.getLogger("shop").warning(text)


class Format(Enum):
    """How a report is written."""

    TEXT = "text"
    PAGE = "page"


@task
def report(
    day: date,
    *,
    pages: int = 10,
    scale: float | None = None,
    title: str = "Daily report",
    draft: bool = False,
    since: datetime | None = None,
    style: Literal["plain", "rich"] | None = "plain",
    written: Format = Format.TEXT,
    recipients: list[str] | None = None,
    options: "Options | None" = None,
    api_token: str = "hunter2",  # noqa: S107 - what must not be shown
) -> None:
    """Write a report, with an argument of each kind that the form has an input for."""
    CALLS.append((day, pages, scale, title, draft, since, style, written, recipients, options, api_token))


@task
def gather(first: int, *rest: object, **more: object) -> None:
    """Take as many arguments as are given."""
    CALLS.append((first, rest, more))
