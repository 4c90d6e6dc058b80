"""From a fault to its row in the table: wait until all is decided, ask the oracle, note what it found."""

import time
from collections.abc import Sequence
from datetime import datetime

from django_delayq.index import Broker
from django_delayq.models import Run
from django_delayq.recurrence import from_ms
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import PATIENCE_SECONDS, wait_until

from .background import Background
from .oracle import History, Verdict, check
from .table import Row
from .trace import Trace

#: How often the oracle is asked while it waits for the last outcomes.
PAUSE_SECONDS = 0.3


def decided(
    histories: Sequence[History], trace: Trace | None, *, until: datetime | None = None, seconds: float | None = None
) -> Verdict:
    """Wait until every point up to `until` (by default now) has its outcome; return what the oracle says in the end.

    Gives up where nothing more was decided for `seconds`, by default for as long as everything else is waited for.
    """
    until = until or utcnow()
    missing, end = None, 0.0
    while True:
        verdict = check(histories, until, trace)
        if len(verdict.missing) != missing:
            missing, end = len(verdict.missing), time.monotonic() + (PATIENCE_SECONDS if seconds is None else seconds)
        if not verdict.missing or time.monotonic() >= end:
            return verdict
        time.sleep(PAUSE_SECONDS)


def leases_end_within(seconds: float, broker: Broker, histories: Sequence[History]) -> int:
    """Assert of all that is leased now that no lease lasts longer; return how many there are.

    That is what the protocol promises of a take-over. How soon after the end somebody comes is up to the machine, hence
    is waited for and measured, not asserted.
    """
    views = broker.read_views([(f"s{history.pk}", "default") for history in histories])
    latest = broker.read_now_ms() + seconds * 1000
    leased = [view for view in views if view.leased and view.score_ms is not None]
    assert [view for view in leased if view.score_ms > latest] == []
    return len(leased)


def goes_on(broker: Broker, histories: Sequence[History]) -> float:
    """Wait until every schedule has run a point that came due after now; return how long that took."""
    began = from_ms(broker.read_now_ms())

    def all_ran() -> bool:
        rows = Run.objects.filter(due_at__gt=began, status="succeeded").values_list("schedule_id", flat=True)
        return {history.pk for history in histories} <= set(rows)

    return wait_until(all_ran, 20, "every schedule to run again")


def row_of(
    fault: str, verdict: Verdict, *, recovery: float | None = None, limit: float | None = None, note: str = ""
) -> Row:
    """Return the row of the table."""
    return Row(
        fault,
        verdict.points,
        len(verdict.missing),
        len(verdict.doubled),
        verdict.executions_mean,
        verdict.executions_max,
        verdict.latency(0.5),
        verdict.latency(0.99),
        verdict.latency(1.0),
        recovery,
        limit,
        note,
    )


class Stall(Background):
    """Measures how late this machine wakes a thread that sleeps: what a busy machine adds to every recovery.

    For what a worker cannot do where it does not run, such as renewing its leases: who asserts it asks `longer_than`.
    """

    STEP_SECONDS = 0.02

    def __init__(self) -> None:
        super().__init__()
        self.worst = 0.0

    def watch(self) -> None:
        """Sleep again and again."""
        while not self.ended.is_set():
            began = time.monotonic()
            time.sleep(self.STEP_SECONDS)
            self.worst = max(self.worst, time.monotonic() - began - self.STEP_SECONDS)

    def longer_than(self, seconds: float) -> bool:
        """Say whether the machine stood still for so long, and tell it."""
        print(f"the machine woke a sleeping thread up to {self.worst:.3f} s late")
        return self.worst > seconds
