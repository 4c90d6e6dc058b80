"""What people have paused or limited, as this worker knows it. Used by the loop's thread only.

Note [Held back]
The truth is a row (`models/control.py`), so a flush of Redis forgets nothing. A worker reads the rows before it claims,
where what it knows is older than FRESH_SECONDS, and while something waits for its start; one that is idle asks with
each of its looks. A paused queue is not claimed from: its members stay where they are, but for those of a claim whose
reply was lost, which is repeated. What was claimed already and has not started is handed back. Tasks are known after
the claim only, so entries of a paused one are handed back for TASK_MS, again and again: for many of them, better pause
their queue. A limit goes with each claim, and the script holds to it. While the database does not answer, what was
known last holds.
"""

import logging
import math
import time
from collections.abc import Callable
from datetime import datetime

from django.db import Error, connections

from .. import ledger
from ..broker import Shard
from ..conf import Config
from ..fields import utcnow
from ..ledger import HeldBack
from .held import Held
from .trouble import Backoff

logger = logging.getLogger("django_delayq.worker")

#: What is known may be so old.
FRESH_SECONDS = 0.5
#: What is due in a paused queue is looked at so often; so is one whose limit is reached, unless one of ours ends.
PAUSED_SECONDS, LIMITED_SECONDS = 1.0, 0.5
#: What was claimed and must not start comes due again after so long.
TASK_MS = 5_000


class Controls:
    """See Note [Held back]."""

    def __init__(self, config: Config, *, read: Callable[[], HeldBack] = ledger.read_held_back) -> None:
        self._config, self._read = config, read
        self._known = HeldBack()
        #: The instant at which a queue or a task was last known as paused, by its name.
        self.paused_at: dict[str, datetime] = {}
        self._read_at = -math.inf
        self._backoff = Backoff()

    def refresh(self) -> bool:
        """Read what holds now, where that is due; say whether something is paused that was not before."""
        now = time.monotonic()
        if now < max(self._read_at + FRESH_SECONDS, self._backoff.until):
            return False
        self._read_at = now
        try:
            found = self._read()
        except Error as error:
            if self._backoff.failed(now):
                text = "What people have paused or limited cannot be read. What was known last holds: %s"
                logger.warning(text, str(error).strip())
            connections.close_all()
            return False
        self._backoff.worked()
        before, self._known = self._known, found
        self.paused_at |= dict.fromkeys((name for _, name in (*before.paused, *found.paused)), utcnow())
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

    @property
    def hold_any(self) -> bool:
        """Say whether anything is paused."""
        return bool(self._known.queues or self._known.tasks)

    def holds(self, held: Held) -> bool:
        """Say whether this entry must not start: what was claimed before its queue was paused, or of a paused task."""
        task = held.task.module_path if held.task is not None else None
        return self.is_paused(held.shard.queue) or task in self._known.tasks

    def most(self, shard: Shard) -> int | None:
        """Return how many leases may stand in a shard, None for any number."""
        most = self._known.most.get(shard.queue)
        return most and max(1, most // self._config.shard_count(shard.queue))
