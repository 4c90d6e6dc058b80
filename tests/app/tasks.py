"""Tasks that the tests schedule. What they did is told through files or the database, never through memory alone."""

import asyncio
import os
import time
from pathlib import Path

from django_delayq.compat import TaskContext, task

CALLS: list[tuple[object, ...]] = []


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
def note(path: str, text: str = "ran", seconds: float = 0) -> None:
    """Write a line at the start, and another at the end."""
    with Path(path).open("a") as file:
        file.write(f"start {text} {os.getpid()} {time.time():.6f}\n")
    time.sleep(seconds)
    with Path(path).open("a") as file:
        file.write(f"end {text} {os.getpid()} {time.time():.6f}\n")


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


@task
def unserializable() -> object:
    """Return something that is not JSON."""
    return object()
