"""Waiting for the end of jobs: the result is read again, after pauses that grow. Enqueues nothing."""

import asyncio
import time
import warnings
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import connections

from .. import conf, ledger
from ..compat import AnyResult
from ..context import EXECUTING
from ..exceptions import BrokerUnavailable, ResultTimeout, WaitRefused

#: The first pause between two reads, how much longer the next one is, and the longest.
FIRST_SECONDS, LONGER, LONGEST_SECONDS = 0.02, 1.25, 1.0


class Wait:
    """One wait for one job: when it reads the result, and until when."""

    def __init__(self, result: AnyResult, timeout: float | timedelta | None) -> None:
        """Warn a task that waits.

        Raises:
            ValueError, TypeError: The timeout is none.
        """
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
        """Say whether the job has ended; its result is refreshed then.

        Raises:
            WaitRefused, TaskResultDoesNotExist, BrokerError: See `JobResult.wait`.
        """
        if self.result.is_finished:
            return True
        worked_on = conf.get_config().mirror
        if worked_on and connections[ledger.database()].in_atomic_block:
            raise WaitRefused(
                f"A transaction is open here, and the job {self.result.id} has not ended: what is enqueued in a "
                "transaction is sent after its commit, and would never end. Wait outside of the transaction."
            )
        try:
            self.result.refresh()
        except BrokerUnavailable:  # until the time is over
            return False
        if not self.result.is_finished and not worked_on:
            raise WaitRefused(
                f"{conf.why_no_redis()}, so that no worker executes the job {self.result.id}. Run it first: "
                "django_delayq.testing has a Runner for tests."
            )
        return self.result.is_finished

    def pause(self) -> float:
        """Return the seconds until the next look.

        Raises:
            ResultTimeout: The time is over.
        """
        pause, self._pause = self._pause, min(self._pause * LONGER, LONGEST_SECONDS)
        if self._end is None:
            return pause
        left = self._end - time.monotonic()
        if left <= 0:
            raise ResultTimeout(f"The job {self.result.id} has not ended within {self.timeout:g} s. It goes on.")
        return min(pause, left)


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
