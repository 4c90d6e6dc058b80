"""The cron recurrence: converts the local times of an expression to instants in a zone.

Note [Points are computed per stretch]
A zone is a series of stretches of constant offset. Within a stretch, wall clock and instants differ by a constant, so
the computation uses wall-clock seconds. Special cases occur only where a stretch begins. After a gap, a fixed-time job
that matched inside the gap gets one point at the first valid minute (`run_after`). After a jump back, a fixed-time job
begins only where the wall clock shows a new time (`once`). Two wall-clock times at one instant are one point.
"""

from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from functools import lru_cache

from ..exceptions import InvalidRecurrence
from .dialect import compile_cron
from .fields import Fields
from .point import DAY, from_seconds, to_micros, to_seconds
from .zone import LONGEST_SHIFT, find_stretch, get_zone

DST_GAP = ("run_after", "skip")
DST_OVERLAP = ("once", "twice")


#: The last queried second and its result: judging, recording and settling a point repeat the query. The key is a
#: number because the two instants of a repeated local hour would be equal as datetimes.
Steps = list[tuple[int | None, datetime | None]]


@lru_cache(maxsize=4096)
def _prepare(expression: str, timezone: str, dst_gap: str, dst_overlap: str, key: str) -> tuple[Fields, tzinfo, Steps]:
    for name, value, allowed in (("dst_gap", dst_gap, DST_GAP), ("dst_overlap", dst_overlap, DST_OVERLAP)):
        if value not in allowed:
            raise InvalidRecurrence(f"{name} is one of {' and '.join(allowed)}, not {value!r}.", field=name)
    return compile_cron(expression, key), get_zone(timezone), [(None, None)]


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone. The same `key`, which feeds the hash behind `H`, always gives the same times.
    `dst_gap` and `dst_overlap` apply to fixed-time jobs only (neither minute nor hour begins with `*`).
    """

    expression: str
    timezone: str = "UTC"
    dst_gap: str = "run_after"
    dst_overlap: str = "once"
    key: str = ""
    fields: Fields = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _steps: Steps = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("expression", "timezone", "dst_gap", "dst_overlap"):
            if not isinstance(value := getattr(self, name), str):
                raise InvalidRecurrence(
                    f"{name} must be text, not {value!r}.", field="cron" if name == "expression" else name
                )
        key = self.key if "h" in self.expression.lower() else ""  # else every name would take a cache entry
        fields, zone, steps = _prepare(self.expression, self.timezone, self.dst_gap, self.dst_overlap, key)
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "_steps", steps)

    def next_after(self, instant: datetime) -> datetime | None:
        second = to_seconds(instant)
        steps, found = self._steps[0]
        if steps != second:
            found = from_seconds(self._find_first(second + 1))
            self._steps[0] = second, found
        return found

    def previous_at_or_before(self, instant: datetime, floor: datetime) -> datetime | None:
        """See `Recurrence`. Costs 20 to 30 times as much as `next_after`."""
        return from_seconds(self._find_last(to_seconds(instant), to_seconds(floor)))

    def count_between(self, first: datetime, last: datetime) -> int:
        return self._count(-(-to_micros(first) // 1_000_000), to_seconds(last))

    # -- in whole UTC seconds since 1970, wall-clock seconds where so named; see Note [Points are computed per stretch]

    def _find_first(self, second: int) -> int | None:
        while True:
            begin, end, offset, extra = self._find_stretch(second)
            wall = begin + offset
            found = self.fields.find_first(wall)
            if extra is not None and (found is None or extra < found - offset):
                return extra
            if found is None:
                return None
            if found - offset < end:
                return found - offset
            second = end
            if end + offset - wall > DAY:
                # No jump back reaches before `wall`, and nothing matches between `wall` and `found`.
                second = max(end, found - offset - 2 * DAY)

    def _find_last(self, second: int, floor: int) -> int | None:
        """Return the last due point in `floor < point <= second`, by bisection: the distance costs little."""
        newest = self._find_first(floor + 1)
        if newest is None or newest > second:
            return None
        low, high = newest, second + 1
        while high - low > 1:
            middle = (low + high) // 2
            point = self._find_first(middle)
            if point is None or point > second:
                high = middle
            else:
                low = point
        return low

    def _count(self, first: int, last: int) -> int:
        """Return the number of due points in `first <= point <= last`. Counts by stretch, not by point."""
        total = 0
        second = first
        while second <= last:
            begin, end, offset, extra = self._find_stretch(second)
            if extra is not None and extra <= last and not self.fields.count(extra + offset, extra + offset + 1):
                total += 1
            total += self.fields.count(begin + offset, min(end, last + 1) + offset)
            second = end
        return total

    def _find_stretch(self, second: int) -> tuple[int, int, int, int | None]:
        """Return where the stretch begins to count, its end, its offset, and the point that replaces a gap before."""
        start, end, offset, before = find_stretch(self._zone, second)
        shift = offset - before
        if shift == 0 or abs(shift) > LONGEST_SHIFT or not self.fields.fixed:
            return second, end, offset, None
        if shift < 0:
            return max(second, start - shift) if self.dst_overlap == "once" else second, end, offset, None
        extra = -(-(start + offset) // 60) * 60 - offset
        if self.dst_gap == "skip" or extra < second:
            return second, end, offset, None
        missing = self.fields.find_first(start + before)
        return second, end, offset, extra if missing is not None and missing < start + offset else None
