"""Waits for the end of a job by polling the database. Enqueues nothing."""

import math
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta

from django.db import connections

from .. import conf, ledger
from ..calls.compat import AnyResult
from ..calls.context import EXECUTING
from ..exceptions import WaitRefused

#: Seconds between polls: the first, the maximum, and the growth factor.
FIRST_SECONDS, LAST_SECONDS, FACTOR = 0.02, 1.0, 1.25


def poll(result: AnyResult, timeout: float | timedelta | None) -> Iterator[float]:
    """Refresh a result until its job has ended; yield the seconds until the next query. See `JobResult.wait`."""
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if limit is not None and not limit >= 0:
        raise ValueError(f"A timeout is 0 or more seconds, or None for none, not {timeout!r}.")
    if not result.is_finished and EXECUTING.get() is not None:
        warnings.warn(
            f"A task waits for the job {result.id} and occupies its slot. If the tasks of all slots wait, no slot "
            "executes their jobs. Split the task, or let on_success enqueue the next one.",
            RuntimeWarning,
            stacklevel=3,
        )
    end, pause = math.inf if limit is None else time.monotonic() + limit, FIRST_SECONDS
    while not _has_ended(result):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"The job {result.id} has not ended within {limit:g} s. It continues.")
        yield min(pause, left)
        pause = min(LAST_SECONDS, pause * FACTOR)


def _has_ended(result: AnyResult) -> bool:
    """Return whether the job has ended; its result is then refreshed. Raises WaitRefused if it cannot end."""
    if not result.is_finished:
        result.refresh()
    if result.is_finished:
        return True
    if not conf.get_config().mirror:
        raise WaitRefused(
            f"{conf.explain_no_redis()}, so no worker executes the job {result.id}. Run it first: "
            "django_delayq.testing has a Runner for tests."
        )
    if connections[ledger.get_database()].in_atomic_block:
        raise WaitRefused(
            f"A transaction is open here. Its jobs are sent after its commit, and it may not see the end of the "
            f"job {result.id}. Wait outside the transaction."
        )
    return False
