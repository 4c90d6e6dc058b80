"""What was counted in each minute, in Redis until a worker moves it into the database. See `counters.py`."""

from .. import counters
from ..counters import Counts, Key, Tally
from ..exceptions import DamagedKeys
from . import keys
from .broker import Broker
from .keys import Shard
from .scripts import Call, number, text

#: What nobody moves into the database is gone after two days.
KEPT_MS = 2 * 24 * 3600 * 1000


class MinuteCounts:
    """One hash for each queue and minute, in the queue's first shard. Minutes are numbered since the epoch."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def add(self, queue: str, minute: int, tallies: list[tuple[Key, Tally]]) -> None:
        """Add to a minute. Repeated after a lost reply it may count twice.

        Raises:
            BrokerError: It may have been counted.
        """
        args: list[str | int] = [minute, KEPT_MS, counters.MOST_TASKS]
        for key, tally in tallies:
            args += (counters.field_of(key), counters.field_of((*key[:2], "")), counters.encode(tally))
        names = self._name(queue, minute), self._name(queue, "minutes")
        self.broker.scripts.run("count", [Call(names, args)])

    def minutes(self, queue: str, first: int, last: int) -> list[int]:
        """Return the minutes from `first` to `last` that something was counted in, the oldest first."""
        name = self._name(queue, "minutes")
        try:
            found = self.broker.ask("zrangebyscore", name, first, last)
        except DamagedKeys:
            return []  # the next `add` mends it
        return [minute for each in found if (minute := number(text(each))) is not None and first <= minute <= last]

    def read(self, queue: str, minute: int) -> Counts:
        """Return what was counted in a minute."""
        try:
            found = self.broker.ask("hgetall", self._name(queue, minute))
        except DamagedKeys:
            return Counts()
        return counters.decode(queue, {text(field): text(value) for field, value in found.items()})

    def forget(self, queue: str, minute: int) -> None:
        """Delete a minute."""
        self.broker.ask("unlink", self._name(queue, minute))
        self.broker.ask("zrem", self._name(queue, "minutes"), minute)

    def _name(self, queue: str, what: str | int) -> str:
        return keys.counts_key(self.broker.config.prefix, Shard(queue, 0), what)
