"""The counts of each minute, in Redis until a worker moves them into the database. See `counters.py`."""

from operator import methodcaller

from . import keys
from .broker import Broker
from .connection import DamagedKeys
from .counters import Counts, Key, Tally, decode, field_of
from .keys import Shard
from .scripts import number, text

#: Counts expire after two days, in ms, unless a worker moves them into the database.
KEPT_MS = 2 * 24 * 3600 * 1000


class MinuteCounts:
    """One hash for each queue and minute, in the queue's first shard. Minutes are numbered since the epoch."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def add(self, queue: str, minute: int, tallies: list[tuple[Key, Tally]]) -> None:
        """Add to a minute. After a `BrokerError` it may have been counted; a repetition may then count twice."""
        name, minutes = self._name(queue, minute), self._name(queue, "minutes")
        commands = [methodcaller("zadd", minutes, {minute: minute}), methodcaller("pexpire", minutes, KEPT_MS)]
        for (kind, _, task), tally in tallies:
            commands += [methodcaller("hincrby", name, field_of(kind, word, task), n) for word, n in tally.items()]
        try:
            self.broker.ask_all([*commands, methodcaller("pexpire", name, KEPT_MS)])
        except DamagedKeys:  # another program wrote them
            self.broker.ask("unlink", name, minutes)
            raise

    def minutes(self, queue: str, first: int, last: int) -> list[int]:
        """Return the minutes from `first` to `last` that have counts, oldest first."""
        name = self._name(queue, "minutes")
        try:
            found = self.broker.ask("zrangebyscore", name, first, last)
        except DamagedKeys:
            return []  # the next `add` repairs it
        return [minute for each in found if (minute := number(text(each))) is not None and first <= minute <= last]

    def read(self, queue: str, minute: int) -> Counts:
        """Return the counts of a minute."""
        try:
            found = self.broker.ask("hgetall", self._name(queue, minute))
        except DamagedKeys:
            return Counts()
        return decode(queue, {text(field): text(value) for field, value in found.items()})

    def forget(self, queue: str, minute: int) -> None:
        """Delete a minute."""
        self.broker.ask("unlink", self._name(queue, minute))
        self.broker.ask("zrem", self._name(queue, "minutes"), minute)

    def _name(self, queue: str, what: str | int) -> str:
        return keys.counts_key(self.broker.config.prefix, Shard(queue, 0), what)
