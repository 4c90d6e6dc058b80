"""Growing delays: for a server that does not answer, and per member for what is handed back. Reads no clock."""

#: Between two tries of a server.
FIRST_SECONDS, MOST_SECONDS = 0.1, 5.0

#: So many members are remembered. While all of them come back, others wait the longest: few of them come at a time.
REMEMBERED = 10_000


class Delays:
    """Doubles from the first to the longest, in ms. A member that stays away for long begins anew."""

    def __init__(self, first_ms: int, most_ms: int) -> None:
        self._first_ms, self._most_ms = first_ms, most_ms
        self._last: dict[str, tuple[int, float]] = {}  # delay in ms and second of the last time, the oldest first

    def next(self, member: str, now: float) -> int:
        """Return the delay for a member that is handed back once more, at this monotonic second."""
        last_ms, _ = self._last.pop(member, (0, 0.0))
        self._forget_old(now)
        if not last_ms and len(self._last) >= REMEMBERED:
            return self._most_ms
        delay_ms = min(2 * last_ms or self._first_ms, self._most_ms)
        self._last[member] = delay_ms, now
        return delay_ms

    def forget(self, member: str) -> None:
        """Begin anew the next time: what it was handed back for is over."""
        self._last.pop(member, None)

    def _forget_old(self, now: float) -> None:
        """Forget those that were not handed back for three times the longest delay."""
        while self._last:
            oldest = next(iter(self._last))
            if now - self._last[oldest][1] < 3 * self._most_ms / 1000:
                return
            del self._last[oldest]


class Backoff:
    """Doubles from 0.1 s to 5 s with each failure in a row; `failed` returns True for the first of a row."""

    def __init__(self) -> None:
        self.until = 0.0
        self._delay = 0.0

    def failed(self, now: float) -> bool:
        """Note a failure at `now` (monotonic); say whether it is the first in a row, worth a log line."""
        first = self._delay == 0.0
        self._delay = min(max(FIRST_SECONDS, self._delay * 2), MOST_SECONDS)
        self.until = now + self._delay
        return first

    def worked(self) -> bool:
        """Note a success; say whether it ends a row of failures."""
        again = self._delay > 0.0
        self._delay = self.until = 0.0
        return again
