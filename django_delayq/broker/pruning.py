"""Who prunes the ledger, and how far that came: kept in Redis, and known anew after a flush. See `pruning.py`."""

from ..exceptions import DamagedKeys
from . import keys
from .broker import Broker
from .keys import Shard
from .mark import Mark
from .scripts import text


class PruningNotes:
    """Two keys, in the first shard of the first queue."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Of who prunes.
        self.turn = Mark(broker, self._name("turn"))

    def last(self) -> str | None:
        """Return what was noted last; what is no text was damaged, and is taken away."""
        try:
            value = self._broker.ask("get", self._name("last"))
        except DamagedKeys:
            self._broker.ask("delete", self._name("last"))
            return None
        return None if value is None else text(value)

    def note(self, value: str) -> None:
        """Write it in place of what was noted last."""
        self._broker.ask("set", self._name("last"), value)

    def _name(self, what: str) -> str:
        config = self._broker.config
        return keys.pruning_key(config.prefix, Shard(min(config.queues), 0), what)
