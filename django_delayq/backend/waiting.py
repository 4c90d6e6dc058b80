"""Waits for the end of a job by polling the database. Enqueues nothing."""

import asyncio
import time
import warnings
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import connections

from .. import conf, ledger
from ..calls.compat import AnyResult
from ..calls.context import EXECUTING
from ..exceptions import WaitRefused

#: Seconds between polls: the first, the maximum, and the growth factor.
FIRST_SECONDS, LAST_SECONDS, FACTOR = 0.02, 1.0, 1.25


class Wait:
    def __init__(self, result: AnyResult, timeout: float | timedelta | None) -> None:
        """`timeout` is in seconds, None for no limit; raises ValueError or TypeError if it is not valid."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"A timeout is 0 or more seconds, or None for none, not {timeout!r}.")
        self.result, self.timeout = result, seconds
        self._end = None if seconds is None else time.monotonic() + seconds
        self._pause = FIRST_SECONDS
        if not result.is_finished and EXECUTING.get() is not None:
            warnings.warn(
                f"A task waits for the job {result.id}, and its slot waits with it: where all slots do, none is left "
                "for the jobs that they wait for. Split the task, or let on_success enqueue what follows.",
                RuntimeWarning,
                stacklevel=5,
            )

    def look(self) -> bool:
        """Return whether the job has ended; its result is then refreshed. Raises what `JobResult.wait` does."""
        if not self.result.is_finished:
            self.result.refresh()
        if self.result.is_finished:
            return True
        if not conf.get_config().mirror:
            raise WaitRefused(
                f"{conf.why_no_redis()}, so that no worker executes the job {self.result.id}. Run it first: "
                "django_delayq.testing has a Runner for tests."
            )
        if connections[ledger.database()].in_atomic_block:
            raise WaitRefused(
                f"A transaction is open here: what is enqueued in it is sent after its commit, and it may not see "
                f"the end of the job {self.result.id}. Wait outside of the transaction."
            )
        return False

    def pause(self) -> float:
        """Return the seconds until the next poll; raise TimeoutError after the timeout."""
        seconds = self._pause
        self._pause = min(LAST_SECONDS, seconds * FACTOR)
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"The job {self.result.id} has not ended within {self.timeout:g} s. It goes on.")
            seconds = min(seconds, left)
        return seconds


def wait(result: AnyResult, timeout: float | timedelta | None) -> None:
    """See `JobResult.wait`."""
    this = Wait(result, timeout)
    while not this.look():
        time.sleep(this.pause())


async def await_(result: AnyResult, timeout: float | timedelta | None) -> None:
    """See `JobResult.await_`."""
    this = Wait(result, timeout)
    look = sync_to_async(this.look)
    while not await look():
        await asyncio.sleep(this.pause())
