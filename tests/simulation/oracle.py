"""Which due points there are, worked out from definitions by plain arithmetic on ms. Knows no Redis and no ledger."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django_delayq.models import Schedule, ScheduleState
from django_delayq.recurrence import to_ms

#: No interval of these histories is longer.
MOST_MS = 3_700_000


@dataclass
class Era:
    """A definition from its `effective_from` on (exclusive) up to that of the next one (inclusive). Instants are ms."""

    begin: int
    edited: int
    #: Up to here everything was decided by then: where the definition before it ends.
    decided: int
    enabled: bool
    anchor: int
    every: int | None
    once: int | None
    first: int
    #: The last instant at which a point may lie (`end_at`).
    last: int | None = None
    end: int | None = None
    #: True where nobody who mirrors ever saw it: made and replaced by processes that do not, between two sweeps.
    unknown: bool = False

    def points(self, after: int, until: int) -> Iterator[int]:
        """Yield the due points with `after < point <= until` in which this definition is in force."""
        after = max(after, self.begin, self.first - 1)
        until = min(until, *(limit for limit in (self.last, self.end, until) if limit is not None))
        if not self.enabled:
            return
        if self.once is not None:
            if after < self.once <= until:
                yield self.once
            return
        point = self.anchor + ((after - self.anchor) // self.every + 1) * self.every
        while point <= until:
            yield point
            point += self.every

    def has(self, point: int) -> bool:
        """Say whether this is one of its points."""
        return next(self.points(point - 1, point), None) is not None

    def next_after(self, after: int) -> int | None:
        """Return the first point after an instant, None where there is none any more."""
        return next(self.points(after, max(after, self.begin, self.first) + MOST_MS), None)


def era_of(row: Schedule, claimed: Iterable[int] = ()) -> Era:
    """Return the definition as it stands in the database.

    Where a clock was wrong, points after this moment may be decided already: the definition has none up to there. Nor
    has it any up to one that is `claimed`, which may be executed yet, or not.
    """
    last = ScheduleState.objects.filter(schedule=row).values_list("last_due_at", flat=True)
    decided = to_ms(max(filter(None, (row.effective_from, *last))))
    start = None if row.start_at is None else to_ms(row.start_at)
    created = to_ms(row.created_at)
    return Era(
        begin=max(decided, *claimed, 0),
        edited=to_ms(row.effective_from),
        decided=decided,
        enabled=row.enabled,
        anchor=created if start is None else start,
        every=None if row.every is None else int(row.every.total_seconds() * 1000),
        once=None if row.at is None else to_ms(row.at),
        first=0 if start is None else start,
        last=None if row.end_at is None else to_ms(row.end_at),
    )


class Oracle:
    """The definitions of every schedule there is, by primary key, oldest first."""

    def __init__(self) -> None:
        self.eras: dict[int, list[Era]] = {}

    def note(self, row: Schedule, claimed: Iterable[int] = ()) -> None:
        """Note what a write left in the database; only what moves `effective_from` begins a new definition."""
        eras, era = self.eras.setdefault(row.pk, []), era_of(row, claimed)
        if eras and eras[-1].edited == era.edited and eras[-1].enabled == era.enabled:
            era.begin = eras[-1].begin
            eras[-1] = era
            return
        if eras:
            eras[-1].end = era.decided
        eras.append(era)

    def forget(self, pk: int) -> None:
        """Note a deletion."""
        self.eras.pop(pk, None)

    def copied(self) -> dict[int, list[Era]]:
        """Return all of it, for a backup."""
        return copy.deepcopy(self.eras)

    def is_point(self, pk: int, point: int) -> bool:
        """Say whether any definition of this schedule had the point while it was in force."""
        return any(era.has(point) for era in self.eras.get(pk, ()))
