"""The protocol of recurrences, and the simple ones: interval, single point, window. Knows no calendar."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ..exceptions import InvalidRecurrence
from .point import MICROSECOND, MILLISECOND, to_utc


class Recurrence(Protocol):
    """A pure rule that yields due points. Takes aware datetimes (else ValueError), returns aware ones in UTC."""

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first point strictly after the instant, None if there is none up to the year 9999."""

    def previous_at_or_before(self, instant: datetime, floor: datetime) -> datetime | None:
        """Return the newest point with `floor < point <= instant`, or None. The cost is independent of their number."""

    def count_between(self, first: datetime, last: datetime) -> int:
        """Return the number of points with `first <= point <= last`. The cost is independent of their number."""


@dataclass(frozen=True, slots=True)
class Every:
    """A lattice `anchor + n * every` for all integers n, including negative ones. A restart never moves it."""

    every: timedelta
    anchor: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.every, timedelta):
            raise InvalidRecurrence(f"every must be a timedelta, not {self.every!r}.", field="every")
        if self.every < MILLISECOND:
            raise InvalidRecurrence(f"every must be at least 1 ms, not {self.every!r}.", field="every")
        object.__setattr__(self, "anchor", to_utc(self.anchor, "anchor", field="every"))

    def next_after(self, instant: datetime) -> datetime | None:
        return self._find_lattice_point(instant, 1)

    def previous_at_or_before(self, instant: datetime, floor: datetime) -> datetime | None:
        newest, floor = self._find_lattice_point(instant, 0), to_utc(floor, "floor")
        return newest if newest is not None and newest > floor else None

    def count_between(self, first: datetime, last: datetime) -> int:
        before_first = -((self.anchor - to_utc(first, "first")) // self.every) - 1
        return max(0, (to_utc(last, "last") - self.anchor) // self.every - before_first)

    def _find_lattice_point(self, instant: datetime, later: int) -> datetime | None:
        """Return the newest lattice point up to the instant, plus `later` intervals."""
        try:
            if getattr(instant, "tzinfo", None) is not UTC:
                instant = to_utc(instant)
            return self.anchor + ((instant - self.anchor) // self.every + later) * self.every
        except OverflowError:  # beyond the years 1 to 9999
            return None


@dataclass(frozen=True, slots=True)
class Once:
    """A single point."""

    at: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", to_utc(self.at, "at", field="at"))

    def next_after(self, instant: datetime) -> datetime | None:
        return self.at if self.at > to_utc(instant) else None

    def previous_at_or_before(self, instant: datetime, floor: datetime) -> datetime | None:
        floor, instant = to_utc(floor, "floor"), to_utc(instant)
        return self.at if floor < self.at <= instant else None

    def count_between(self, first: datetime, last: datetime) -> int:
        first, last = to_utc(first, "first"), to_utc(last, "last")
        return int(first <= self.at <= last)


@dataclass(frozen=True, slots=True)
class Windowed:
    """The points of another recurrence with `start <= point <= end`; None leaves a side open."""

    recurrence: Recurrence
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("end", self.end)):
            if value is not None:
                object.__setattr__(self, name, to_utc(value, name, field=f"{name}_at"))
        if self.start is not None and self.end is not None and self.end < self.start:
            raise InvalidRecurrence(f"The end {self.end} is before the start {self.start}.", field="end_at")

    def next_after(self, instant: datetime) -> datetime | None:
        instant = to_utc(instant)
        if self.start is not None and self.start > instant:
            instant = self.start - MICROSECOND
        point = self.recurrence.next_after(instant)
        return None if point is None or (self.end is not None and point > self.end) else point

    def previous_at_or_before(self, instant: datetime, floor: datetime) -> datetime | None:
        instant, floor = to_utc(instant), to_utc(floor, "floor")
        if self.end is not None:
            instant = min(instant, self.end)
        if self.start is not None:
            floor = max(floor, self.start - MICROSECOND)
        return self.recurrence.previous_at_or_before(instant, floor)

    def count_between(self, first: datetime, last: datetime) -> int:
        first, last = to_utc(first, "first"), to_utc(last, "last")
        if self.start is not None:
            first = max(first, self.start)
        if self.end is not None:
            last = min(last, self.end)
        return self.recurrence.count_between(first, last)
