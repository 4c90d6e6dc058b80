"""Growing delays per member, for what is handed back again and again. Reads no clock."""

#: Forgetting costs a shorter delay, remembering for ever costs memory.
REMEMBERED = 10_000


class Delays:
    """Doubles from the first to the longest, in ms."""

    def __init__(self, first_ms: int, most_ms: int) -> None:
        self._first_ms, self._most_ms = first_ms, most_ms
        self._last_ms: dict[str, int] = {}

    def next(self, member: str) -> int:
        """Return the delay for a member that is handed back once more."""
        if len(self._last_ms) >= REMEMBERED and member not in self._last_ms:
            self._last_ms.clear()
        delay = min(self._last_ms.get(member, self._first_ms // 2) * 2, self._most_ms)
        self._last_ms[member] = delay
        return delay

    def forget(self, member: str) -> None:
        """Begin anew the next time: what it was handed back for is over."""
        self._last_ms.pop(member, None)
