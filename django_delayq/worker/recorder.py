"""Writes outcomes to the database, then settles them in Redis. Keeps the outcomes that a failing server did not take.

Note [Locked outcomes are kept]
Outcomes of locked rows (`ledger/locks.py`, Note [Locked rows are skipped]) stay here under renewed leases. Each is
retried after as long as it has waited, at most a second. Once a whole batch waits, nothing more is claimed.

Note [Fault needs evidence]
A constraint, a trigger or a missing partition refuses every row, with the same IntegrityError or DataError as one bad
row. So a refused batch is written row by row. A row is at fault if the database has taken other rows of its sort
(`Lease.sort`) since its first refusal, and then refuses it again. A row at fault is discarded: its entry comes due
again when its lease ends. All other refused rows stay here, because a discarded outcome is executed again, and after
some take-overs is lost(poison). After each pause one row is retried; once a row of a sort is taken, all of that sort
are retried. A sequence behind its table and a missing partition never prove a row at fault.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from django.db import DataError, Error, IntegrityError

from ..exceptions import BrokerError
from ..index import Broker, MinuteCounts, Shard
from ..index.counters import DISCARDED, Counts
from .held import Lease, LeaseKeeper
from .timers import Timers
from .trip import Trip
from .trouble import Backoff, Trouble

logger = logging.getLogger("django_delayq.worker")

#: Seconds between two tries of locked rows, the shortest and the longest pause.
FIRST_SECONDS, MOST_SECONDS = 0.05, 1.0
#: Seconds after which the log reports a locked row.
REPORT_SECONDS = 1.0
#: Maximum entries that a log line names.
NAMED = 5
#: Seconds between two writes of counts, and after a failure.
EVERY_SECONDS, AGAIN_SECONDS = 1.0, 10.0
UNIQUE_VIOLATION, CHECK_VIOLATION = "23505", "23514"  # SQLSTATE


def is_passing(error: Exception) -> bool:
    """Return whether this error never proves a row at fault, whatever is taken. See Note [Fault needs evidence]."""
    cause = error.__cause__
    diagnostics = getattr(cause, "diag", None)
    constraint = getattr(diagnostics, "constraint_name", None) or ""
    code = getattr(diagnostics, "sqlstate", None)
    return (code == UNIQUE_VIOLATION and constraint.endswith("_pkey")) or (code == CHECK_VIOLATION and not constraint)


class Refusals:
    """Refused rows, in the sequence of their retries. Used by the loop's thread only."""

    def __init__(self) -> None:
        self.rows: dict[Lease, None] = {}
        self._taken: Counter[Hashable] = Counter()  # by sort, since the first refusal
        #: True from the first refusal until all rows are taken again.
        self.reported = False
        self._backoff = Backoff()

    @property
    def again(self) -> float:
        """The monotonic second of the next try, 0 for now. Only meaningful if a row waits."""
        return 0.0 if any(map(self._has_evidence, self.rows)) else self._backoff.until

    def take_due(self, now: float) -> list[Lease]:
        """Remove and return the rows to retry at this monotonic second."""
        found = list(filter(self._has_evidence, self.rows))
        if not found and self.rows and now >= self._backoff.until:
            found = [next(iter(self.rows))]
            self._backoff.note_failure(now)
        for held in found:
            del self.rows[held]
        return found

    def refuse(self, held: Lease, error: Exception, now: float) -> bool:
        """Note that a row was refused alone; return whether it is at fault. If not, it waits here."""
        passing = is_passing(error)
        if self._has_evidence(held) and not passing:
            self.reported = bool(self.rows)
            return True
        if passing:
            held.refused = math.inf
        elif held.refused is None:
            held.refused = self._taken[held.sort]
        if not self.reported:
            self.reported = True
            self._backoff.note_success()
            self._backoff.note_failure(now)
            text = (
                "The outcome of %s is refused: %s. Refused outcomes are kept and tried again. If all are refused, look "
                "for a constraint, a trigger, a missing column or partition, or run manage.py sqlsequencereset."
            )
            logger.error(text, held.title, str(error).strip().partition("\n")[0].rstrip(".") or repr(error))
        self.rows[held] = None
        return False

    def note_passed(self, batch: Iterable[Lease]) -> None:
        """Note that the database refused none of these; rows that it took count as evidence."""
        for held in batch:
            self._taken[held.sort] += held.taken
            if held.refused is not None:
                self._backoff.until = 0.0
        if not self.rows:
            self.reported = False
            logger.info("The database takes all outcomes again.")

    def _has_evidence(self, held: Lease) -> bool:
        return held.refused is not None and held.refused < self._taken[held.sort]


class Recorder:
    """Writes in batches; what could not be written stays here for the next call. Used by the loop's thread only."""

    def __init__(self, trip: Trip, keeper: LeaseKeeper, trouble: Trouble, timers: Timers) -> None:
        self.trip, self.keeper, self.trouble, self.timers = trip, keeper, trouble, timers
        self.size = keeper.batch_size
        self._unrecorded: list[Lease] = []
        self._unsettled: dict[Shard, list[Lease]] = {}
        #: Entries whose rows are locked, with the monotonic second of the next try.
        self.locked: dict[Lease, float] = {}
        self.refusals = Refusals()
        #: Number of executed attempts that were settled or lost; entries that were never called do not count.
        self.runs = 0
        #: True while a batch of outcomes is locked or refused, so that nothing more may be claimed.
        self.full = False

    @property
    def again(self) -> float:
        """The monotonic second at which `flush` next has something to write: 0 for now, infinite for never."""
        if self._unrecorded or self._unsettled:
            return 0.0
        again = self.refusals.again if self.refusals.rows else math.inf
        return min(again, *self.locked.values()) if self.locked else again

    @property
    def idle(self) -> bool:
        """True if the only entries held are those that the database refused."""
        waits = self._unrecorded or self._unsettled or self.locked
        return not waits and len(self.keeper) == len(self.refusals.rows)

    def add(self, entries: Iterable[Lease]) -> None:
        """Take entries with an outcome; `flush` records and settles them."""
        self._unrecorded.extend(entries)

    def settle(self, entries: Iterable[Lease]) -> None:
        """Take entries that need no record; `flush` settles them."""
        for held in entries:
            self._unsettled.setdefault(held.shard, []).append(held)

    def flush(self) -> None:
        """Write everything that is due. Failures are passed to `trouble`."""
        now = time.monotonic()
        again = self.refusals.take_due(now) if self.refusals.rows else []
        free = [held for held, at in self.locked.items() if at <= now]
        for held in free:
            del self.locked[held]
        self._unrecorded = [*again, *self._unrecorded, *free]
        try:
            if self._unrecorded:
                self._record(len(again))
                if self.trouble.until:
                    self.trouble.note_database_success(wrote=True)
        except Error as error:
            self.trouble.note_database_failure(error, writing=True)
        try:
            for shard, entries in list(self._unsettled.items()):
                while entries:
                    batch = entries[: self.size]
                    with self.keeper.letting_go(batch):
                        dues = self.trip.settle(shard, batch)
                    del entries[: len(batch)]
                    self.runs += sum(held.executed for held in batch)
                    awaited = [held for held in batch if held.awaited is not None]
                    calls = [call for held in awaited if (call := held.hand_over_receivers()) is not None]
                    self.trip.untold.extend(calls)
                    for due in dues:
                        self.timers.note_due(*due)
                del self._unsettled[shard]
        except BrokerError as error:
            self.trouble.note_redis_failure(error)
        self.full = max(len(self.locked), len(self.refusals.rows)) >= self.size

    def call_receivers(self) -> None:
        """Call the receivers of written outcomes. They may block, so this is the last step of a round."""
        while self.trip.untold:
            self.trip.untold.popleft()()

    def _record(self, singly: int) -> None:
        """Write batches from the head, the first `singly` entries one by one. See Note [Fault needs evidence]."""
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
                if self.refusals.reported:
                    self.refusals.note_passed(batch)
            except Exception as error:
                if isinstance(error, Error) and not isinstance(error, DataError | IntegrityError):
                    raise
                if len(batch) > 1:
                    singly = len(batch)
                    continue
                if self.refusals.refuse(batch[0], error, time.monotonic()):
                    self._discard(batch[0])
            singly = max(0, singly - 1)
            del items[: len(batch)]

    def _discard(self, held: Lease) -> None:
        logger.exception("%s cannot be recorded, although others can; it comes due again.", held.title)
        self.keeper.discard([held])
        labels = held.labels
        of_kind = "jobs" if "job" in labels else "points"
        self.trip.counted.add((of_kind, held.shard.queue, str(labels.get("task", ""))), DISCARDED)

    def _keep(self, items: Sequence[Lease]) -> None:
        """Keep entries whose rows are locked; log those that have waited long. See Note [Locked outcomes are kept]."""
        now = time.monotonic()
        for item in items:
            item.locked_at = item.locked_at or now
            self.locked[item] = now + min(max(now - item.locked_at, FIRST_SECONDS), MOST_SECONDS)
        late = [item for item in items if not item.reported and now - item.locked_at >= REPORT_SECONDS]
        for item in late:
            item.reported = True
        if late:
            titles = ", ".join(item.title for item in late[:NAMED]) + (", ..." if len(late) > NAMED else "")
            logger.warning("Other transactions have locked the rows of %s. Their outcomes are tried again.", titles)
        if len(self.locked) >= self.size and not self.full:
            self.full = True
            logger.error("Nothing more is claimed: %d outcomes wait for locked rows.", len(self.locked))


class Counting:
    """Writes counts to Redis; on failure they wait, bounded by `Counts`. Used by the loop's thread only."""

    def __init__(self, broker: Broker, counted: Counts, timers: Timers) -> None:
        self._minutes, self._timers = MinuteCounts(broker), timers
        self._counted = counted
        #: All counts written since this process began. Only grows; read by other threads.
        self.brought = Counts()
        #: The monotonic second of the next write.
        self.again = 0.0

    def write(self) -> None:
        """Write all counts; stop at the first failure, since each further one may last until its timeout."""
        self.again = time.monotonic() + EVERY_SECONDS
        try:
            for queue in {queue for _, queue, _ in self._counted}:
                taken = [(key, tally) for key, tally in self._counted.items() if key[1] == queue]
                self._minutes.add(queue, int(self._timers.get_server_ms() // 60_000), taken)
                self.brought.merge(taken)
                for key, _ in taken:
                    del self._counted[key]
        except BrokerError as error:
            self.again = time.monotonic() + AGAIN_SECONDS
            logger.debug("Counts wait for Redis: %s", error)
