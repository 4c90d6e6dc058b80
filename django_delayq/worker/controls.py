"""What people have paused or limited, as this worker knows it. Used by the loop's thread only.

Note [Held back]
The truth is a row (`models/control.py`), so a flush of Redis forgets nothing. A worker reads the rows before it claims,
where what it knows is older than FRESH_SECONDS, and while something waits for a slot; one that is idle asks nobody.
A paused queue is not claimed from: its members stay where they are. What was claimed already and has not started is
handed back. Tasks are known after the claim only, so entries of a paused one are handed back for TASK_MS, again and
again: for many of them, better pause their queue. A limit goes with each claim, and the script holds to it.
While the database does not answer, what was known last holds.
"""

import logging
import time
from collections.abc import Callable

from django.db import Error, connections

from .. import ledger
from ..broker import Broker, Shard
from ..kinds import Held
from ..ledger import HeldBack

logger = logging.getLogger("django_delayq.worker")

#: What is known may be so old.
FRESH_SECONDS = 0.5
#: What is due in a paused queue is looked at so often; so is one whose limit is reached, unless one of ours ends.
PAUSED_SECONDS, LIMITED_SECONDS = 1.0, 0.5
#: An entry of a paused task comes due again after so long.
TASK_MS = 5_000
#: After an error it is tried again so much later.
UNREAD_SECONDS = 5.0
UNREAD = "What people have paused or limited cannot be read."


class Controls:
    """See Note [Held back]."""

    def __init__(self, broker: Broker | None, *, read: Callable[[], HeldBack] = ledger.read_held_back) -> None:
        """`broker` tells in how many shards a queue is; None where nothing is limited."""
        self._read, self._broker = read, broker
        self._known = HeldBack()
        self._read_at = -FRESH_SECONDS
        self._failing = False

    def refresh(self) -> bool:
        """Read what holds now, where that is due; say whether something is paused that was not before."""
        now = time.monotonic()
        if now - self._read_at < FRESH_SECONDS:
            return False
        self._read_at = now
        try:
            found = self._read()
        except Error as error:
            if not self._failing:
                logger.warning("%s What was known last holds: %s", UNREAD, str(error).strip())
            self._failing, self._read_at = True, now + UNREAD_SECONDS
            connections.close_all()
            return False
        self._failing = False
        before, self._known = self._known, found
        for kind, name in sorted(set(found.paused) ^ set(before.paused)):
            held = found.queues if kind == "queue" else found.tasks
            if name in held:
                logger.warning("Paused: nothing of %s %s starts (%s).", kind, name, held[name] or "no reason given")
            else:
                logger.info("Resumed: %s %s.", kind, name)
        for name in sorted(found.most.keys() | before.most.keys()):
            if found.most.get(name) != before.most.get(name):
                logger.info("Of queue %s at most %s run at a time.", name, found.most.get(name, "as many as can"))
        return not set(found.paused) <= set(before.paused)

    def is_paused(self, queue: str) -> bool:
        """Say whether nothing is to be claimed from this queue."""
        return queue in self._known.queues

    def holds(self, held: Held) -> bool:
        """Say whether this entry is one of a paused task."""
        return bool(self._known.tasks) and held.task is not None and held.task.module_path in self._known.tasks

    def most(self, shard: Shard) -> int | None:
        """Return how many leases may stand in a shard, None for any number."""
        most = self._known.most.get(shard.queue)
        if most is None or self._broker is None:
            return None
        return max(1, most // self._broker.config.shard_count(shard.queue)) if most else 0
