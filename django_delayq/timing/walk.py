"""From wall clock to instants: which instants the matching local times of a zone are, around changes of its offset too.

Never parses, never rounds; all numbers are whole seconds since 1970, in UTC unless they are called wall.
"""

from dataclasses import dataclass
from datetime import tzinfo

from .fields import DAY, Fields
from .zone import LONGEST_SHIFT, stretch


@dataclass(frozen=True, slots=True)
class Walk:
    """The due points of compiled fields in a zone.

    Note [Stretches]: a zone is a row of stretches of constant offset. Inside one, wall clock and instants differ by a
    constant, so every question is one about wall-clock seconds. What is special happens where a stretch begins:
    after a gap, a fixed-time job that matched inside the gap gets one point at the first valid minute (`run_after`);
    after a jump back, a fixed-time job begins only where the wall clock was not yet before (`once`).
    Two wall-clock times that fall on one instant are one point.
    """

    fields: Fields
    zone: tzinfo
    run_after: bool
    once: bool

    def first_at_or_after(self, second: int) -> int | None:
        """Return the first due point from `second` on, or None after the year 9999."""
        while True:
            begin, end, offset, extra = self._stretch(second)
            wall = begin + offset
            found = self.fields.first_at_or_after(wall)
            if extra is not None and (found is None or extra < found - offset):
                return extra
            if found is None:
                return None
            if found - offset < end:
                return found - offset
            second = end
            if end + offset - wall > DAY:
                # No jump back leads from here to before `wall`, and nothing matches between that and `found`.
                second = max(end, found - offset - 2 * DAY)

    def last_at_or_before(self, second: int, floor: int) -> int | None:
        """Return the last due point in `floor < point <= second`, by bisection: a long way back costs little."""
        newest = self.first_at_or_after(floor + 1)
        if newest is None or newest > second:
            return None
        low, high = newest, second + 1
        while high - low > 1:
            middle = (low + high) // 2
            point = self.first_at_or_after(middle)
            if point is None or point > second:
                high = middle
            else:
                low = point
        return low

    def count(self, first: int, last: int) -> int:
        """Return how many due points lie in `first <= point <= last`, stretch by stretch, not point by point."""
        total = 0
        second = first
        while second <= last:
            begin, end, offset, extra = self._stretch(second)
            if extra is not None and extra <= last and not self.fields.count(extra + offset, extra + offset + 1):
                total += 1
            total += self.fields.count(begin + offset, min(end, last + 1) + offset)
            second = end
        return total

    def _stretch(self, second: int) -> tuple[int, int, int, int | None]:
        """Return from where on the stretch that holds the second counts, its end, its offset, and its extra point.

        That is the one that stands for all that matched in the gap before the stretch, unless it comes before `second`.
        """
        start, end, offset, before = stretch(self.zone, second)
        if self.once and 0 < before - offset <= LONGEST_SHIFT:
            return max(second, start + before - offset), end, offset, None
        if self.run_after and 0 < offset - before <= LONGEST_SHIFT:
            point = -(-(start + offset) // 60) * 60 - offset
            missing = self.fields.first_at_or_after(start + before)
            if point >= second and missing is not None and missing < start + offset:
                return second, end, offset, point
        return second, end, offset, None
