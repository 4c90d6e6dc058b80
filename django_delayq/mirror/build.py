"""The mark of a rebuild in a shard's epoch: only who holds it from the first page to the last calls a shard built."""

import secrets
from collections.abc import Sequence

from ..broker import Broker, Shard

#: How long a rebuild may take between two pages before another worker may begin anew.
TTL_MS = 15_000


class Build:
    """A rebuild of the shards whose epoch is absent. A flush in between takes the mark away, and with it the claim."""

    def __init__(self, broker: Broker, shards: Sequence[Shard]) -> None:
        self.broker = broker
        self._id = secrets.token_hex(4)
        self._mark = f"building:{self._id}"
        taken = broker.swap_epochs(shards, None, self._mark, ttl_ms=TTL_MS)
        self.shards = [shard for shard, mine in zip(shards, taken, strict=True) if mine]

    def go_on(self) -> bool:
        """Keep the mark for the next page; False where Redis was flushed again."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark, ttl_ms=TTL_MS))

    def finish(self) -> bool:
        """Call the shards built; False where Redis was flushed meanwhile, which leaves them to be rebuilt."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._id))
