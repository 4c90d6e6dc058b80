"""What falls due in the hours to come: by queue, and the minutes in which the most runs start."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from ...ledger.rows import AnySchedule
from .groups import MINUTE, Group, Steps, grouped, per_step, starts

HOUR = timedelta(hours=1)
#: So many hours are looked into for their busiest minutes: those in which the most schedules fall due.
HOURS_LOOKED_INTO = 4
#: So many minutes are named.
PEAKS = 3


class Peak(NamedTuple):
    """A minute, and how many runs start in it."""

    at: datetime
    runs: int


class Outlook:
    """Due points of these schedules in so many hours from `first` on; what lies before `since` does not count."""

    def __init__(self, schedules: Iterable[AnySchedule], first: datetime, hours: int, since: datetime) -> None:
        self.steps = Steps(first, HOUR, hours, since)
        self._counted = [
            (group, per_step(group.rule, self.steps, group.after, group.left))
            for group in grouped(schedules, since, self.steps.end)
        ]

    def by_queue(self) -> dict[str, list[int]]:
        """Return how many due points each queue has in each hour; only queues that have some."""
        found: dict[str, list[int]] = {}
        for group, counts in self._counted:
            if counts:
                for queue, number in Counter(each.queue for each in group.schedules).items():
                    column = found.setdefault(queue, [0] * self.steps.number)
                    for hour, count in counts.items():
                        column[hour] += count * number
        return found

    def peaks(self) -> list[Peak]:
        """Return the minutes in which the most runs start, the highest first; jitter is counted in.

        They are those of the hours with the most schedules. A minute is missed only where a few schedules start more
        often than once in it, or where more than HOURS_LOOKED_INTO hours have as many schedules.
        """
        best: list[Peak] = []
        crowds: Counter[int] = Counter()
        for group, counts in self._counted:
            for hour in counts:
                crowds[hour] += len(group.schedules)
        for hour, most in crowds.most_common(HOURS_LOOKED_INTO):
            if len(best) == PEAKS and best[-1].runs >= most:
                break
            first = self.steps.first + hour * HOUR
            groups = [group for group, counts in self._counted if hour in counts or group.moves]
            minutes = minutes_of(groups, first, self.steps.since)
            best += [Peak(first + number * MINUTE, count) for number, count in enumerate(minutes) if count]
            best = sorted(best, key=lambda peak: (-peak.runs, peak.at))[:PEAKS]
        return best


def minutes_of(groups: Iterable[Group], hour: datetime, since: datetime) -> list[int]:
    """Return how many runs start in each minute of the hour that begins then."""
    found = [0] * 60
    for group in groups:
        for number, count, schedules in starts(group, Steps(hour, MINUTE, 60, since)):
            found[number] += count * len(schedules)
    return found
