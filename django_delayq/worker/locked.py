"""Held entries whose row somebody else's transaction has locked: kept, tried again, told of. Writes nothing itself.

Note [Kept while locked]
What the ledger leaves out (`ledger/locks.py`, Note [Nobody's row is waited for]) stays here under its renewed lease,
and is tried again after as long as it has waited already, a second at most. Each is named once in the log, when it has
waited for TELL_SECONDS, together with whoever probably has the lock. A schedule whose outcome waits is not claimed
meanwhile; but everything else is, and where more and more rows are locked, more and more would be executed that cannot
be recorded. So where a batch of them waits, nothing more is claimed.
"""

import logging
import math
import time
from collections.abc import Sequence

from django.db import DatabaseError
from django.db.models import Model

from .. import ledger
from ..kinds import Held

logger = logging.getLogger("django_delayq.worker")

FIRST_SECONDS, MOST_SECONDS = 0.05, 1.0
#: Who locks a row for less is not worth a line.
TELL_SECONDS = 1.0
#: So many are named in a line.
NAMED = 5


class Locked:
    """Used by the loop's thread only. See Note [Kept while locked]."""

    def __init__(self, *models: type[Model], most: int) -> None:
        """`models`: whose rows are locked; `most`: with so many claiming stops."""
        self._models, self._most = models, most
        self._next: dict[Held, float] = {}  # the monotonic second of the next try
        self._was_full = False

    def __len__(self) -> int:
        return len(self._next)

    @property
    def held(self) -> list[Held]:
        """The entries that wait here."""
        return list(self._next)

    @property
    def full(self) -> bool:
        """True while so many wait that nothing more is to be claimed."""
        return len(self._next) >= self._most

    @property
    def until(self) -> float:
        """The monotonic second of the next try; infinite where nothing waits."""
        return min(self._next.values(), default=math.inf)

    def keep(self, items: Sequence[Held]) -> None:
        """Take what was found locked just now, and tell of what has waited for long."""
        now = time.monotonic()
        for item in items:
            item.locked_at = item.locked_at or now
            self._next[item] = now + min(max(now - item.locked_at, FIRST_SECONDS), MOST_SECONDS)
        late = [item for item in items if not item.told and now - item.locked_at >= TELL_SECONDS]
        for item in late:
            item.told = True
        if late:
            logger.warning("Locked by another transaction: %s. The others go on. %s", _titles(late), self._whose())
        if self.full and not self._was_full:
            logger.error("Nothing more is claimed: %d outcomes wait for locked rows. %s", len(self), self._whose())
        self._was_full = self.full

    def take(self) -> list[Held]:
        """Give back what is to be tried again now."""
        now = time.monotonic()
        items = [item for item, again in self._next.items() if again <= now]
        for item in items:
            del self._next[item]
        return items

    def _whose(self) -> str:
        try:
            return f"The oldest transaction that writes there: {ledger.owner_of_locks(self._models)}."
        except DatabaseError as error:
            return f"Whose it is cannot be asked: {error}"


def _titles(items: Sequence[Held]) -> str:
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(item.title for item in items[:NAMED]) + more
