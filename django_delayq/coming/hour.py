"""One hour that is looked into: its minutes, and who starts in each."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from ..rows import AnySchedule
from .groups import MINUTE, Group, grouped
from .outlook import HOUR, minutes_of, starting_at
from .sample import Sample, read, read_due


class Hour(NamedTuple):
    """What was read, by what it has in common, and how many runs start in each minute."""

    first: datetime
    since: datetime
    sample: Sample
    groups: list[Group]
    minutes: list[int]

    @property
    def busiest(self) -> int:
        """The minute in which the most runs start."""
        return max(range(60), key=lambda minute: self.minutes[minute])

    def due(self, minute: int, most: int) -> list[AnySchedule]:
        """Return the schedules of which a run starts in this minute.

        All that there are, unless most were left out: then those that were read, and up to so many whose next due
        point it is.
        """
        first = self.first + minute * MINUTE
        groups = self.groups
        if self.sample.is_estimate:
            known = {row.pk for row in self.sample.rows}
            others = [row for row in read_due(first, first + MINUTE, most) if row.pk not in known]
            groups = groups + grouped(others, self.since, first + MINUTE)
        return starting_at(groups, first, self.since)

    def minutes_of(self, schedules: Iterable[AnySchedule]) -> list[int]:
        """Return how many runs of these would start in each minute."""
        return minutes_of(_groups(schedules, self.first, self.since), self.first, self.since)


def look_into(first: datetime, now: datetime) -> Hour:
    """Return the hour that begins then; what lies before this minute does not count."""
    sample, since = read(now), minute_of(now)
    groups = _groups(sample.rows, first, since)
    return Hour(first, since, sample, groups, minutes_of(groups, first, since))


def minute_of(instant: datetime) -> datetime:
    """Return when the minute began."""
    return instant.replace(second=0, microsecond=0)


def _groups(schedules: Iterable[AnySchedule], first: datetime, since: datetime) -> list[Group]:
    return grouped(schedules, max(since, first), first + HOUR)
