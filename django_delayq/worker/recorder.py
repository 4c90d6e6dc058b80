"""Finished entries into the ledger, then out of Redis. Keeps what a failing server did not take.

Note [Ledger first]
Rule R3. An outcome is written to the ledger before Redis hears of it, and Redis is only settled for what the ledger
took. A crash between the two repeats a wake-up, which finds the point decided; in the other order it would lose the
outcome. Whoever loses the ledger's compare-and-set does not touch Redis at all: the lease may be somebody else's, whose
settle is the right one. The one exception is a row that is final: then nobody executes, perhaps nobody is left to
settle, and the loser settles to the first missing point, as far as the fence lets it.

Note [Next point]
Rule R4. The next point comes from the point that was decided and from the definition, as the recording transaction sees
it, and never from a worker's clock: a clock that is wrong, or an outage, must not move it. It is proposed even where it
has passed already; what to do about a late point is judged when it is claimed.

Note [Whose fault]
A batch that is refused is written one by one, so that one row holds up no other. A row is at fault where it is refused
alone and for what is in it: by DataError or IntegrityError, or before the database is asked. It is told, and let go.
Everything else would meet any row: no connection, a standby that only reads, a right that was revoked, a column that is
not there. Then outcomes stay here, under their renewed leases, and nothing new is claimed (`Worker.tick`) until the
database takes them: thrown away, what has succeeded would be executed again, and in the end be lost(poison).
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from django.db import DatabaseError, DataError, Error, IntegrityError

from .. import chain, failpoints, ledger, mirror
from ..broker import Broker, Lease, Place, Settlement
from ..exceptions import InvalidRecurrence
from ..ledger import Outcome, Won
from ..models import Run, Schedule, ScheduleState, Status
from ..rows import RunRow, ScheduleRow
from .announcing import announce
from .entry import Finished, Held
from .jobs.entry import FinishedJob
from .leases import LeaseKeeper
from .locked import Locked

logger = logging.getLogger("django_delayq.worker")

Due = Callable[[Place, int], None]
AnyFinished = TypeVar("AnyFinished", Finished, FinishedJob)


class Recorder:
    """Writes in batches. What could not be written stays here, under its renewed lease, for the next call.

    The order is the guarantee: the ledger first; Redis only for what the ledger took. A crash in between repeats a
    wake-up, never an outcome.
    """

    def __init__(self, broker: Broker, keeper: LeaseKeeper, *, due_at_ms: Due, due_in_ms: Due) -> None:
        """`due_at_ms` and `due_in_ms` are told when a member that left here comes due, by the server's clock."""
        self.broker = broker
        self._due_at_ms = due_at_ms
        self._due_in_ms = due_in_ms
        self.keeper = keeper
        self.unrecorded: list[Finished] = []
        self.locked: Locked[Finished] = Locked(Schedule, ScheduleState, Run, most=broker.config.batch_size)
        self.unsettled: dict[Place, list[tuple[Held, Settlement]]] = {}
        self.unretried: dict[Place, list[tuple[Held, Lease]]] = {}
        self.unqueued: list[RunRow] = []
        self.runs = 0

    @property
    def idle(self) -> bool:
        """True while nothing waits to be written."""
        return self.again == math.inf

    @property
    def again(self) -> float:
        """The monotonic second from which on `flush` has something to write: 0 for now, infinite for nothing at all."""
        if self.unrecorded or self.unsettled or self.unretried or self.unqueued:
            return 0.0
        return self.locked.until

    def add(self, finished: Iterable[Finished]) -> None:
        """Take finished entries, to be written by `flush`; what never started is let go."""
        for item in finished:
            if item.started:
                self.unrecorded.append(item)
            else:
                self.keeper.discard([item.held])

    def settle(self, held: Held, point: datetime | None, schedule: ScheduleRow) -> None:
        """Take an entry that needs no row (any more), to be settled by `flush` to this point; None drops it."""
        wake = None if point is None else chain.wake_of(schedule, point)
        self.unsettled.setdefault(held.place, []).append((held, held.settlement(point, wake)))

    def drop(self, held: Held) -> None:
        """Take an entry that has no next point, to be taken out of Redis by `flush`."""
        self.unsettled.setdefault(held.place, []).append((held, held.settlement(None)))

    def flush(self) -> None:
        """Write everything that is here.

        Raises:
            django.db.Error: What was not written is kept. See Note [Whose fault].
            BrokerError: The ledger was written; what was not settled is kept.
        """
        self.unrecorded += self.locked.take()
        write_all(self.unrecorded, self.broker.config.batch_size, self._record, self.keeper)
        self._settle_all()

    def _record(self, batch: Sequence[Finished]) -> None:
        entries: list[tuple[int, Outcome, Finished | None]] = []
        for number, finished in enumerate(batch):
            held = finished.held
            assert held.outcome is not None  # noqa: S101 - only judged entries finish
            entries.append((number, held.outcome, finished))
            run = held.outcome.run
            decided = run.apart or not Status(run.status).is_open
            if held.beside and (decided or held.outcome.owner is not None):
                if held.outcome.owner is None:
                    for outcome in held.beside:
                        outcome.owner = held.outcome
                entries += [(number, outcome, None) for outcome in held.beside]
        failpoints.reach("before_ledger")
        won = ledger.record([outcome for _, outcome, _ in entries])
        failpoints.reach("after_ledger")
        locked = []
        in_order = sorted(zip(entries, won, strict=True), key=lambda item: (item[0][0], item[0][1].run.due_at))
        for (_, outcome, owner), result in in_order:
            if result is Won.YES:
                announce(outcome)
            if owner is not None and result is Won.LOCKED:
                locked.append(owner)
            elif owner is not None:
                self._after(owner, outcome, result)
        if locked:
            self.locked.keep(locked)

    def _after(self, finished: Finished, outcome: Outcome, result: Won) -> None:
        held, run = finished.held, outcome.run
        self.runs += finished.executed
        if result is Won.GONE:
            logger.info("%s was deleted while it ran; its outcome is not recorded.", run.schedule_name)
            self.drop(held)
        elif result is Won.LOST:
            self.lost(held, run)
        elif finished.retry_after_ms is not None:
            self.unretried.setdefault(held.place, []).append((held, held.lease(finished.retry_after_ms)))
        else:
            self._advance(held, outcome)

    def _advance(self, held: Held, outcome: Outcome) -> None:
        """Settle a decided point: run members leave, a chain goes on. See Note [Next point]."""
        schedule = outcome.schedule
        held.generation = max(held.generation, schedule.generation)
        if outcome.run.apart and outcome.run.status == Status.QUEUED:
            self.unqueued.append(outcome.run)
        if not held.member.startswith("s") or schedule.queue != held.place.queue:
            self.drop(held)
        else:
            self.settle(held, outcome.next_point, schedule)

    def lost(self, held: Held, run: RunRow) -> None:
        """Somebody else decided this point. See Note [Ledger first]."""
        logger.warning("%s due %s was decided by another worker.", run.schedule_name, run.due_at)
        try:
            self._go_on_from_ledger(held, run)
        except DatabaseError as error:  # whatever else is in this batch is written: let its lease end
            logger.warning("%s is left to its lease: %s", held.member, error)
            self.keeper.discard([held])

    def _go_on_from_ledger(self, held: Held, run: RunRow) -> None:
        row = ledger.find(run)
        if row is None or Status(row.status).is_open or not held.member.startswith("s"):
            self.keeper.discard([held])
            return
        schedule = ledger.load_schedules([run.schedule_id]).get(run.schedule_id)
        rows = ledger.load_open_rows([run.schedule_id]).get(run.schedule_id)
        if schedule is None or not (schedule.enabled or rows):
            self.drop(held)
            return
        held.generation = max(held.generation, schedule.generation)
        try:
            point = rows[0].due_at if rows else chain.next_point(schedule, schedule.state)
        except InvalidRecurrence:
            point = None
        self.settle(held, point, schedule)

    def _settle_all(self) -> None:
        if self.unqueued:  # before the schedule goes on, so that a crash in between is made up for by its next claimer
            mirror.enqueue_runs(self.broker, self.unqueued)
            for run in self.unqueued:
                self._due_in_ms(self.broker.place_of(chain.run_member_of(run.pk), run.queue), 0)
            self.unqueued.clear()
        for place in list(self.unsettled):
            items = self.unsettled[place]
            while items:
                part = items[: self.broker.config.batch_size]
                with self.keeper.letting_go(held for held, _ in part):
                    replies = self.broker.settle(place, [settlement for _, settlement in part])
                    failpoints.reach("after_settle")
                del items[: len(part)]
                self._tell(place, [settlement for _, settlement in part], replies)
            del self.unsettled[place]
        for place in list(self.unretried):
            retries = self.unretried.pop(place)
            try:
                with self.keeper.letting_go(held for held, _ in retries):
                    self.broker.retry(place, [lease for _, lease in retries])
            except Exception:
                self.unretried[place] = retries
                raise
            self._due_in_ms(place, min(lease.delay_ms for _, lease in retries))

    def _tell(self, place: Place, settled: Sequence[Settlement], replies: Sequence[int]) -> None:
        if 2 in replies:  # edited meanwhile: due again at once
            self._due_in_ms(place, 0)
        wakes = [item.wake_ms for item in settled if item.point_ms is not None]
        if wakes:
            self._due_at_ms(place, min(wakes))


def write_all(
    items: list[AnyFinished], size: int, write: Callable[[Sequence[AnyFinished]], None], keeper: LeaseKeeper
) -> None:
    """Write batches from the head of this list, and take out of it what was written, and what is itself at fault.

    Raises:
        django.db.Error: What is still in the list was not written. See Note [Whose fault].
    """
    singly = 0
    while items:
        batch = items[: 1 if singly else size]
        try:
            write(batch)
        except Exception as error:
            if isinstance(error, Error) and not isinstance(error, DataError | IntegrityError):
                raise
            if len(batch) > 1:
                logger.error("A batch was refused (%r); its %d rows are written one by one.", error, len(batch))
                singly = len(batch)
                continue
            logger.exception("%s cannot be recorded; it comes due again.", batch[0].title)
            keeper.discard([batch[0].held])
        singly = max(0, singly - 1)
        del items[: len(batch)]
