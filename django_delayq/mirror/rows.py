"""Reads of many schedules what the sweeps need, from the primary database. Reads only; decides nothing."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import F, Min, Q

from .. import ledger
from ..models import Condition, Schedule
from .digest import sum_of_place


class Settled(NamedTuple):
    """A schedule that Redis knew as it stands, with its first missing point."""

    pk: int
    queue: str
    name: str
    jitter: timedelta
    generation: int
    point: datetime


_SETTLED_FIELDS = ("pk", "queue", "name", "jitter", "generation", "state__next_due_at")


def load_settled(pks: Sequence[int]) -> list[Settled]:
    """Return those of these schedules that need no working out: mirrored, active, nothing begun, nothing owed."""
    rows = Schedule._base_manager.using(ledger.database()).filter(
        Q(state__last_due_at=None) | Q(state__last_due_at__lt=F("state__next_due_at")),
        **_among("pk", pks),
        enabled=True,
        synced_generation=F("generation"),
        state__condition=Condition.ACTIVE,
        state__next_due_at__gt=F("effective_from"),
    )
    # The end of a run apart from the chain moves the next point, and is not written there.
    rows = rows.exclude(every_from=Schedule.EveryFrom.FINISH, overlap="allow")
    found = rows.order_by("pk").values_list(*_SETTLED_FIELDS, "state__mirrored_digest")
    settled = [
        Settled(*row) for *row, digest in found if digest.rpartition(":")[2] == sum_of_place(row[1], row[3], row[2])
    ]
    begun = load_oldest_open(pks)
    return [row for row in settled if row.pk not in begun] if begun else settled


def load_homes(after: int, count: int, queues: Sequence[str] | None = None) -> dict[int, str]:
    """Return the queue of each of the next `count` schedules after a primary key, of all queues or of these."""
    rows = Schedule._base_manager.using(ledger.database()).filter(pk__gt=after).order_by("pk")
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    return dict(rows.values_list("pk", "queue")[:count])


def pages(size: int, queues: Sequence[str] | None = None) -> Iterator[dict[int, str]]:
    """Yield the queues of all schedules, or of those of these queues, by primary key, so many at a time."""
    last = 0
    while page := load_homes(last, size, queues):
        yield page
        last = max(page)


def load_homes_of(pks: Sequence[int]) -> dict[int, str]:
    """Return the queue of each of these schedules that is there."""
    return dict(Schedule._base_manager.using(ledger.database()).filter(pk__in=pks).values_list("pk", "queue"))


def load_oldest_open(pks: Sequence[int]) -> dict[int, datetime]:
    """Return the oldest due point without an outcome of each of these chains that has one."""
    rows = ledger.open_chains().filter(**_among("schedule_id", pks)).order_by()
    return dict(rows.values_list("schedule_id").annotate(Min("due_at")))


def keys_of(pks: Collection[int]) -> list[int] | range:
    """Return the keys; as a range where that asks for few rows more, which the database answers faster."""
    first, last = min(pks, default=0), max(pks, default=-1)
    return range(first, last + 1) if last - first < 2 * len(pks) else list(pks)


def _among(column: str, pks: Sequence[int]) -> dict[str, Any]:
    if isinstance(pks, range):
        return {f"{column}__gte": pks.start, f"{column}__lt": pks.stop}
    return {f"{column}__in": list(pks)}
