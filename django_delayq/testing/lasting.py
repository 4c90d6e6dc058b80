"""Lets a task take a given time by the frozen clock. Changes the task only during the call."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from asgiref.sync import iscoroutinefunction

from ..calls.compat import AnyTask
from ..exceptions import TaskTimeout
from .clock import FrozenClock


@contextmanager
def lasting(task: AnyTask, duration: timedelta | None, limit: timedelta | None, clock: FrozenClock) -> Iterator[None]:
    """Advance the clock when the task ends. If `duration` exceeds `limit`, raise TaskTimeout instead of calling it."""
    if duration is None:
        yield
        return
    real = task.func

    @contextmanager
    def clocked() -> Iterator[None]:
        try:
            if limit is not None and duration > limit:
                raise TaskTimeout
            yield
        finally:
            clock.advance(duration if limit is None else min(duration, limit))

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        with clocked():
            return real(*args, **kwargs)

    @functools.wraps(real)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        with clocked():
            return await real(*args, **kwargs)

    object.__setattr__(task, "func", acall if iscoroutinefunction(real) else call)  # tasks are frozen
    try:
        yield
    finally:
        object.__setattr__(task, "func", real)
