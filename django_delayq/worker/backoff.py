"""How long to wait before asking a server again that did not answer. Reads no clock of its own."""

FIRST_SECONDS = 0.1
MOST_SECONDS = 5.0


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
