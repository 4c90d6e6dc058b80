"""Lets a task take a given time by the frozen clock. Changes the task only while it is called."""

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
    """Move the clock on when the task ends. Where it would take longer than `limit`, it is stopped by it instead.

    What is stopped is not called at all: nobody can say how far it would have come.
    """
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
