"""Outcomes into the database, then out of Redis. Keeps what a failing server did not take.

Note [Kept while locked]
What the ledger leaves out (`ledger/locks.py`, Note [Nobody's row is waited for]) stays here under its renewed lease,
and is tried again after as long as it has waited already, a second at most. Each is named once in the log, when it has
waited for TELL_SECONDS, together with whoever probably has the lock. A schedule whose outcome waits is not claimed
meanwhile; but everything else is, and where more and more rows are locked, more and more would be executed that cannot
be recorded. So where a batch of them waits, nothing more is claimed.

Note [Whose fault]
The class of an error is no evidence. A missing column or partition, a constraint or a trigger refuses every row with
the same IntegrityError or DataError as a bad row. So a batch that is refused is written one by one, and a row is at
fault only where it is refused once more after other rows of its sort (`Held.sort`) were taken. Only then it is
discarded: it comes due again when its lease ends. What every row meets is an outage. The rows stay here, under their
renewed leases: discarded, what has succeeded would be executed again, and in the end be lost(poison).

One row is tried again after each pause, and all rows of a sort once one of it was taken. While a batch of rows waits
here, nothing more is claimed.

For some errors no evidence counts, since good rows meet them while others are taken: a sequence is behind its table, as
after a restore, or a partition is missing. These rows stay here until the database takes them. Errors of other classes
(no connection, a standby that only reads, a right that was revoked) concern every row, and are not kept here.
"""

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence

from django.db import DatabaseError, DataError, Error, IntegrityError

from .. import ledger
from ..exceptions import BrokerError
from ..index import Broker, MinuteCounts, Shard
from ..index.counters import DISCARDED, Counts
from .held import Held, LeaseKeeper
from .timers import Timers
from .trip import TABLES, Trip
from .trouble import Trouble

logger = logging.getLogger("django_delayq.worker")

#: Seconds between two tries of refused rows, the first and the longest.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
#: Seconds between two tries of locked rows, the first and the longest.
FIRST_SECONDS, MOST_SECONDS = 0.05, 1.0
#: Who locks a row for less is not worth a line.
TELL_SECONDS = 1.0
#: So many are named in a line.
NAMED = 5
#: Seconds between two writes of counts, and after a failure: counts are worth no trouble.
EVERY_SECONDS, AGAIN_SECONDS = 1.0, 10.0
#: PostgreSQL's codes of errors.
UNIQUE_VIOLATION, CHECK_VIOLATION = "23505", "23514"


def may_concern_some(error: Exception) -> bool:
    """Return whether the database may take other rows in spite of this error. See Note [Whose fault]."""
    return not isinstance(error, Error) or isinstance(error, DataError | IntegrityError)


def is_passing(error: Exception) -> bool:
    """Return whether no row is at fault for this error, however many others are taken. See Note [Whose fault].

    PostgreSQL says so by its code and the name of the constraint: its messages are in the language of the server.
    """
    cause = error.__cause__
    diagnostics = getattr(cause, "diag", None)
    constraint = getattr(diagnostics, "constraint_name", None) or ""
    code = getattr(diagnostics, "sqlstate", None)
    return (code == UNIQUE_VIOLATION and constraint.endswith("_pkey")) or (code == CHECK_VIOLATION and not constraint)


class Refusals:
    """Refused rows, in the order of their tries. Used by the loop's thread only."""

    def __init__(self) -> None:
        self.rows: dict[Held, None] = {}
        self._taken: Counter[Hashable] = Counter()  # rows of each sort, since the first refusal
        #: True from the first refusal on, until all is taken again.
        self.told = False
        self._pause, self._again = PAUSE_SECONDS, 0.0

    @property
    def again(self) -> float:
        """The monotonic second of the next try, 0 for now. For where a row waits."""
        return 0.0 if any(map(self._has_evidence, self.rows)) else self._again

    def due(self, now: float) -> list[Held]:
        """Take out the rows that are to be tried again at this monotonic second."""
        found = list(filter(self._has_evidence, self.rows))
        if not found and self.rows and now >= self._again:
            found = [next(iter(self.rows))]
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            self._again = now + self._pause
        for held in found:
            del self.rows[held]
        return found

    def refuse(self, held: Held, error: Exception, now: float) -> bool:
        """Note that a row was refused alone; return whether it is at fault. If not, it waits here."""
        passing = is_passing(error)
        if self._has_evidence(held) and not passing:
            self.told = bool(self.rows)
            return True
        held.refused = math.inf if passing else self._taken[held.sort] if held.refused is None else held.refused
        if not self.told:
            self.told = True
            self._pause, self._again = PAUSE_SECONDS, now + PAUSE_SECONDS
            text = (
                "The outcome of %s is refused: %s. Refused outcomes are kept and tried again; nothing is lost. If all "
                "are refused, look for a constraint, a trigger, a missing column or partition, or a sequence behind "
                "its table (manage.py sqlsequencereset django_delayq)."
            )
            logger.error(text, held.title, str(error).strip().partition("\n")[0].rstrip(".") or repr(error))
        self.rows[held] = None
        return False

    def passed(self, batch: Iterable[Held]) -> None:
        """Note that the database refused none of these; what it has taken is evidence."""
        for held in batch:
            self._taken[held.sort] += held.taken
            if held.refused is not None:
                self._again = 0.0  # the next one may be taken too
        if not self.rows:
            self.told = False
            logger.info("All outcomes are taken again.")

    def _has_evidence(self, held: Held) -> bool:
        return held.refused is not None and held.refused < self._taken[held.sort]


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
        self.refusals = Refusals()
        #: How many executions left here, each attempt is one; what was never called is none.
        self.runs = 0
        #: Calls of receivers, to be made by `tell`. None of them raises.
        self.untold: deque[Callable[[], None]] = deque()
        #: True while so much waits for locked rows, or was refused, that nothing more is to be claimed.
        self.full = False

    @property
    def again(self) -> float:
        """The monotonic second from which on `flush` has something to write: 0 for now, infinite for nothing at all."""
        if self._unrecorded or self._unsettled:
            return 0.0
        again = self.refusals.again if self.refusals.rows else math.inf
        return min(again, *self._locked.values()) if self._locked else again

    @property
    def idle(self) -> bool:
        """True where nothing is held but what the database refused."""
        waits = self._unrecorded or self._unsettled or self._locked
        return not waits and len(self.keeper) == len(self.refusals.rows)

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
        again = self.refusals.due(now) if self.refusals.rows else []
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
        self.full = max(len(self._locked), len(self.refusals.rows)) >= self.size

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
                if self.refusals.told:
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
                for due in dues:
                    self.timers.due(*due)
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


class Counting:
    """What Redis does not take waits for the next call, bounded as `Counts` is. Used by the loop's thread only."""

    def __init__(self, broker: Broker, counted: Counts, timers: Timers) -> None:
        """`timers` know the server's clock, which says what minute it is."""
        self._minutes, self._timers = MinuteCounts(broker), timers
        self._counted = counted
        #: All that was brought since this process began. It only grows; read by other threads.
        self.brought = Counts()
        #: The monotonic second from which on something may be brought.
        self.again = 0.0

    def write(self) -> None:
        """Bring what there is; nothing more after the first failure, as the next one may take long to show."""
        self.again = time.monotonic() + EVERY_SECONDS
        try:
            for queue in {queue for _, queue, _ in self._counted}:
                self._bring(queue)
        except BrokerError as error:
            self.again = time.monotonic() + AGAIN_SECONDS
            logger.debug("Counts wait for Redis: %s", error)

    def _bring(self, queue: str) -> None:
        taken = [(key, tally) for key, tally in self._counted.items() if key[1] == queue]
        self._minutes.add(queue, int(self._timers.server_ms() // 60_000), taken)
        self.brought.merge(taken)
        for key, _ in taken:
            del self._counted[key]
