"""Tasks that the tests of jobs enqueue."""

import asyncio
import math
import sys
from collections import UserDict

from django_delayq.calls.compat import TaskContext, task
from tests.app import tasks as app_tasks
from tests.jobs.support import with_options


@task
def echo(*args: object, **kwargs: object) -> list[object]:
    """Return what it is called with."""
    return [list(args), kwargs]


@task
async def aecho(*args: object, **kwargs: object) -> list[object]:
    """Return what it is called with, from a coroutine."""
    await asyncio.sleep(0)
    return [list(args), kwargs]


@task(takes_context=True)
def tell(context: TaskContext, *args: object, **kwargs: object) -> dict[str, object]:
    """Return what the context knows."""
    result = context.task_result
    return {
        "id": result.id,
        "attempt": context.attempt,
        "status": str(result.status),
        "args": result.args,
        "kwargs": result.kwargs,
        "called with": [list(args), kwargs],
        "workers": len(result.worker_ids),
        "key": context.idempotency_key,
        "lost": context.lease_lost,
        "task": result.task.module_path,
        "priority": result.task.priority,
        "queue": result.task.queue_name,
        "backend": result.task.backend,
        "run_after": str(result.task.run_after),
        "started": result.started_at is not None,
    }


@task(takes_context=True)
async def atell(context: TaskContext) -> str:
    """Return the id from a coroutine."""
    await asyncio.sleep(0)
    return context.task_result.id


class Lazy(UserDict):  # type: ignore[type-arg]
    """Looks like a dict, and fails when somebody looks into it."""

    def __getitem__(self, key: object) -> object:
        """Fail."""
        raise KeyError(key)


@task
def give(what: str) -> object:
    """Return a value of another kind."""
    values = {
        "tuple": (1, (2, b"x")),
        "bytes": b"caf\xc3\xa9",
        "broken bytes": b"\xff",
        "object": object(),
        "nan": math.nan,
        "set": {1},
        "deep": {"a": [{"b": None}], "c": 1.5, "d": "\u2028 \\u0000"},
        "none": None,
        "lazy": Lazy(lazy=1),
        "surrogate": ["\udcff"],
        "nul": {"a": "b\0"},
    }
    return values[what]


@task
def leave(how: str) -> None:
    """End by something that is no Exception."""
    if how == "exit":
        sys.exit("told to exit")
    if how == "interrupt":
        raise KeyboardInterrupt("pressed")
    raise BaseException("base")


@task
def complicated() -> None:
    """Fail with an exception whose argument is another one."""
    raise ValueError(ValueError("This task failed"))


class Unspeakable(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@task
def unspeakable() -> None:
    """Fail with what cannot be printed."""
    raise Unspeakable


@task
def leak(password: str, note: str) -> None:
    """Fail, and tell a secret."""
    raise RuntimeError(f"refused {password} with {note}")


@with_options(max_attempts=3, backoff=0)
def stubborn_once(path: str, failures: int) -> str:
    """Fail as often as asked; tried three times."""
    return app_tasks.flaky.func(path, failures)


@task
def enqueue_another(number: int) -> str:
    """Enqueue a task from a task."""
    return echo.enqueue(number).id


@task
def heard(*args: object) -> None:
    """Note what it was called with."""
    app_tasks.CALLS.append(args)


@task
def heard_of_run(run: int, due: str) -> None:
    """Note of which run it was told."""
    app_tasks.CALLS.append(("run", run, due))
