"""Calls a task within its time, in a slot's thread. Writes nothing anywhere, and knows no kind.

Note [Attempts]
Rule R5. Attempts are counted in the row or the job's text when they end; the number that Redis keeps beside a point
only says that it waits for a retry. So a flush, a rebuild or a restored snapshot grants no new attempts. A take-over
after a crash is no attempt of the task's, and is counted apart (`worker/isolation.py`, Note [Alone]).
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync, iscoroutinefunction

from ..compat import AnyTask
from ..exceptions import TaskTimeout
from .base import Held
from .children import end_as_child
from .timeouts import Timeouts

logger = logging.getLogger("django_delayq.worker")

MAX_BACKOFF = timedelta(hours=1)


class Ended(NamedTuple):
    """What a call returned, or what ended it."""

    value: Any
    error: BaseException | None


def perform(held: Held, timeouts: Timeouts, call: Callable[[], Any], *, interrupt: bool = True) -> Ended | None:
    """Call, and have that end within its time: by an exception in this thread, or else by the call itself.

    Never raises: a `BaseException` that is no `Exception` (a task that calls `sys.exit`) ends the call too. Returns
    None where it ended after its hard timeout: its outcome was reported without it.
    """
    held.executed = True
    began, process = time.perf_counter(), os.getpid()
    limit = held.limit
    if limit is None:
        try:
            value, error = call(), None
        except BaseException as raised:
            value, error = None, raised
    else:
        value, error = timeouts.run(call, held, limit, interrupt=interrupt)
    if os.getpid() != process:
        end_as_child(error)
    seconds = time.perf_counter() - began
    if held.conclude():
        held.seconds = seconds
        return Ended(value, error)
    logger.warning("%s ended after %.1f s, when its outcome was recorded already.", held.title, seconds)
    timeouts.forget()
    return None


def perform_task(held: Held, task: AnyTask, timeouts: Timeouts, /, *args: Any, **kwargs: Any) -> Ended | None:
    """Do `perform` with a task; an `async def` one is cancelled by its event loop."""
    if held.limit is not None and iscoroutinefunction(task.func):
        call = partial(_call_cancellable, task, held.limit, *args, **kwargs)
        return perform(held, timeouts, call, interrupt=False)
    return perform(held, timeouts, partial(task.call, *args, **kwargs))


def _call_cancellable(task: AnyTask, seconds: float, /, *args: Any, **kwargs: Any) -> Any:
    """Call an `async def` task; have its event loop cancel it after so many seconds.

    Raises:
        TaskTimeout: It was cancelled. Whatever else it raises passes through, a TimeoutError of its own too.
    """

    async def bounded() -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await task.acall(*args, **kwargs)
        except TimeoutError:
            if limit.expired():
                return limit
            raise

    value = async_to_sync(bounded)()
    if isinstance(value, asyncio.Timeout):
        raise TaskTimeout
    return value


def hung(held: Held, where: str) -> str:
    """Return what stands in place of a traceback where a task does not end."""
    return f"Still running {held.seconds:.1f} s after its start. Where it was:\n{where}"


def backoff_ms(base: timedelta, attempt: int) -> int:
    """Return the delay after a failed attempt: doubling, at most an hour, spread by up to a fifth downwards."""
    seconds = min(base.total_seconds() * 2 ** min(attempt - 1, 30), MAX_BACKOFF.total_seconds())
    return int(seconds * 1000 * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load, guards nothing
