"""Outcomes into the database, then out of Redis. Keeps what a failing server did not take.

What the database refuses, `refusals.py` keeps: see Note [Whose fault] there.

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
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from django.db import DatabaseError, Error

from .. import ledger
from ..broker import Shard
from ..counters import DISCARDED
from ..exceptions import BrokerError
from .held import Held
from .leases import LeaseKeeper
from .refusals import Refusals, may_concern_some
from .timers import Timers
from .trip import TABLES, Trip
from .trouble import Trouble

logger = logging.getLogger("django_delayq.worker")

FIRST_SECONDS, MOST_SECONDS = 0.05, 1.0
#: Who locks a row for less is not worth a line.
TELL_SECONDS = 1.0
#: So many are named in a line.
NAMED = 5


class Recorder:
    """Writes in batches. What could not be written stays here, under its renewed lease, for the next call.

    The order is the guarantee: the database first; Redis only for what the database took. A crash in between repeats a
    wake-up, never an outcome. Used by the loop's thread only.
    """

    def __init__(self, trip: Trip, keeper: LeaseKeeper, trouble: Trouble, timers: Timers) -> None:
        """`timers` is told when something comes due that was settled."""
        self.trip, self.keeper, self.trouble, self.timers = trip, keeper, trouble, timers
        self.size = keeper.batch_size
        self._unrecorded: list[Held] = []
        self._unsettled: dict[Shard, list[Held]] = {}
        self._locked: dict[Held, float] = {}  # to be tried once more at these monotonic seconds
        self.refusals = Refusals(self.size)
        #: How many executions left here, each attempt is one; what was never called is none.
        self.runs = 0
        #: Calls of receivers, to be made by `tell`. None of them raises.
        self.untold: deque[Callable[[], None]] = deque()
        #: True while so much waits for locked rows that nothing more is to be claimed.
        self.full = False

    @property
    def again(self) -> float:
        """The monotonic second from which on `flush` has something to write: 0 for now, infinite for nothing at all."""
        if self._unrecorded or self._unsettled:
            return 0.0
        return min(math.inf, *self._locked.values(), self.refusals.again)

    @property
    def idle(self) -> bool:
        """True where nothing is held but what the database refused."""
        waits = self._unrecorded or self._unsettled or self._locked
        return not waits and len(self.keeper) == len(self.refusals)

    def room(self) -> float:
        """Return how many entries may be claimed now, as far as it depends on what waits here."""
        return 0 if self.full else self.refusals.room()

    @property
    def locked(self) -> list[Held]:
        """What waits for locked rows."""
        return list(self._locked)

    def add(self, entries: Iterable[Held]) -> None:
        """Take what has an outcome, to be written and settled by `flush`."""
        self._unrecorded.extend(entries)

    def settle(self, entries: Iterable[Held]) -> None:
        """Take what needs no record (any more), to be settled by `flush`."""
        for held in entries:
            self._unsettled.setdefault(held.shard, []).append(held)

    def flush(self) -> None:
        """Write everything that is here. Failures are the trouble's."""
        now = time.monotonic()
        again = self.refusals.due(now) if self.refusals else []
        for held in [held for held, at in self._locked.items() if at <= now]:
            del self._locked[held]
            self._unrecorded.append(held)
        self._unrecorded[:0] = again
        try:
            if self._unrecorded:
                self._record(len(again))
                if self.trouble.until:
                    self.trouble.database_worked(wrote=True)
        except Error as error:
            self.trouble.database_failed(error, writing=True)
        try:
            if self._unsettled:
                self._settle()
        except BrokerError as error:
            self.trouble.redis_failed(error)
        if self.full:
            self.full = len(self._locked) >= self.size

    def tell(self) -> None:
        """Call the receivers of what was written. They may block: so this comes last in a round."""
        for calls in (self.trip.untold, self.keeper.untold, self.untold):
            while calls:
                calls.popleft()()

    def _record(self, singly: int) -> None:
        """Write batches from the head of the list, its first `singly` entries one by one. See Note [Whose fault].

        Take out of it what was written, and what was refused alone.

        Raises:
            django.db.Error: What is still in the list was not written.
        """
        items = self._unrecorded
        while items:
            batch = items[: 1 if singly else self.size]
            try:
                verdicts = self.trip.record(batch)
                self.settle(verdicts.settle)
                if verdicts.gone:
                    self.runs += sum(held.executed for held in verdicts.gone)
                    self.keeper.discard(verdicts.gone)
                if verdicts.locked:
                    self._keep(verdicts.locked)
                self.refusals.passed(batch)
            except Exception as error:
                if not may_concern_some(error):
                    raise
                if len(batch) > 1:
                    singly = len(batch)
                    continue
                if self.refusals.refuse(batch[0], error, time.monotonic()):
                    self._discard(batch[0])
            singly = max(0, singly - 1)
            del items[: len(batch)]

    def _discard(self, held: Held) -> None:
        logger.exception("%s cannot be recorded, although others can; it comes due again.", held.title)
        self.keeper.discard([held])
        labels = held.labels
        of_kind = "jobs" if "job" in labels else "points"
        self.trip.counted.add((of_kind, held.shard.queue, str(labels.get("task", ""))), DISCARDED)

    def _settle(self) -> None:
        """Settle batches from the heads of the lists; take out what Redis has let go.

        Raises:
            BrokerError: What is still in the lists may have been settled; settling it once more does no harm.
        """
        for shard, entries in list(self._unsettled.items()):
            while entries:
                batch = entries[: self.size]
                with self.keeper.letting_go(batch):
                    dues = self.trip.settle(shard, batch)
                del entries[: len(batch)]
                self.untold.extend(held.after for held in batch if held.after is not None and held.recorded())
                self.runs += sum(held.executed for held in batch)
                self.timers.due(dues)
            del self._unsettled[shard]

    def _keep(self, items: Sequence[Held]) -> None:
        """Keep what was found locked just now, and tell of what has waited for long. See Note [Kept while locked]."""
        now = time.monotonic()
        for item in items:
            item.locked_at = item.locked_at or now
            self._locked[item] = now + min(max(now - item.locked_at, FIRST_SECONDS), MOST_SECONDS)
        late = [item for item in items if not item.told and now - item.locked_at >= TELL_SECONDS]
        for item in late:
            item.told = True
        if late:
            titles = ", ".join(item.title for item in late[:NAMED])
            more = f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
            logger.warning("Locked by another transaction: %s%s. The others go on. %s", titles, more, _whose())
        if len(self._locked) >= self.size and not self.full:
            self.full = True
            logger.error("Nothing more is claimed: %d outcomes wait for locked rows. %s", len(self._locked), _whose())


def _whose() -> str:
    try:
        return f"The oldest transaction that writes there: {ledger.owner_of_locks(TABLES)}."
    except DatabaseError as error:
        return f"Whose it is cannot be asked: {error}"
