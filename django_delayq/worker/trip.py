"""The steps of an entry, batch by batch: claim, renew, judge, begin, record, settle. In the loop's thread unless noted.

Note [Ledger first]
Rule R3. An outcome is written to the ledger first, and Redis is settled only for outcomes that the ledger took. A
crash between the two repeats a wake-up, which finds the point decided; the reverse sequence would lose the outcome. A
worker that loses the ledger's compare-and-set does not change Redis, because another worker may have the lease. The
exception is a row that is final: perhaps no other worker is left to settle it, so the loser settles to the first
missing point, as far as the fence permits.

Note [The next point never comes from a clock]
Rule R4. The next point is computed from the decided point and the definition as the recording transaction sees it: a
wrong clock or an outage must not move it. It is proposed even if it has already passed; a late point is judged when
it is claimed.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from django.db import DatabaseError

from .. import ledger, sync
from ..exceptions import InvalidRecurrence
from ..index import Broker, Shard
from ..index.counters import Counts
from ..ledger import Outcome, Won, chain, version_of
from ..ledger.rows import RunRow
from ..models import Run, Schedule, ScheduleState, Status
from ..models.run import OPEN
from ..recurrence import from_ms, to_ms
from .announcing import announce, nothing
from .held import AGAIN_MS, Claimed, Due, Held, Verdicts
from .judge import judge, show, take_over, write_running

logger = logging.getLogger("django_delayq.worker")

#: Tables whose rows other transactions may have locked.
TABLES = (Schedule, ScheduleState, Run)


class Trip:
    """A worker's operations on entries, by an index, the ledger and the sync."""

    def __init__(self, index: Broker) -> None:
        self.index = index
        #: Counts of outcomes that are not in Redis yet.
        self.counted = Counts()
        #: Calls of receivers, made once the outcomes are written. None of them raises.
        self.untold: deque[Callable[[], None]] = deque()
        self._lease_ms = int(index.config.lease_seconds * 1000)
        self._unqueued: list[RunRow] = []  # points that became separate runs, to be put into Redis
        self._callbacks: list[RunRow] = []  # runs that follow outcomes, to be put into Redis

    def claim(self, shard: Shard, limit: int, request: int, deadline: float, most: int | None = None) -> Claimed:
        """Lease due entries, up to `most` leases in the shard. Repeating a `request` repeats a lost reply.

        Raises:
            BrokerError: The claim may have been executed.
        """
        claim = self.index.claim(shard, limit=limit, lease_ms=self._lease_ms, request=request, most=most)
        worker, claimed_at = self.index.worker, from_ms(claim.now_ms)
        entries = [
            Held(
                shard, entry.member, claim.holder, deadline, entry,
                claim.fence, worker, claimed_at, from_ms(entry.point_ms or 0), entry.member.startswith("s"),
            )
            for entry in claim.entries
        ]  # fmt: skip
        return Claimed(claim.now_ms, claim.head_ms, claim.epoch, entries)

    def renew(self, shard: Shard, batch: Sequence[Held]) -> set[str]:
        """Extend leases; return the members whose lease is lost. Called in the renewing thread.

        Raises:
            BrokerError: The leases may or may not have been extended.
        """
        return self.index.renew(shard, [(held.member, held.lease) for held in batch], lease_ms=self._lease_ms)

    def judge(self, batch: Sequence[Held]) -> Verdicts:
        """Read the rows and decide; write the rows that must exist before anything is started."""
        try:
            verdicts = judge(batch, self.index)
            decided = [(held, chain.parse_member(held.member)) for held in verdicts.settle if held.entry.lapsed]
            points = [(item[1], held.point) for held, item in decided if item is not None and item[0] == "s"]
            if points:
                self._unqueued += ledger.load_queued(points)
            self._callbacks += verdicts.again
            if verdicts.stretches or verdicts.orphans or verdicts.park:
                self._note(verdicts)
        except DatabaseError as error:
            verdicts = Verdicts(back=[(held, AGAIN_MS) for held in batch], asked=True, error=error)
        return verdicts

    def _note(self, verdicts: Verdicts) -> None:
        locked = set()
        recorded = ledger.record(verdicts.stretches) if verdicts.stretches else []
        for outcome, won in zip(verdicts.stretches, recorded, strict=True):
            if won is Won.YES:
                self._tell(outcome)
            elif won is Won.LOCKED:
                locked.add(chain.member_of(outcome.run.schedule_id or 0))
        if locked:
            verdicts.put_back(locked)
        for run in verdicts.orphans:
            ledger.close_orphan(run, "the schedule was deleted")
        if verdicts.park:
            sync.read_wanted([int(held.member[1:]) for held in verdicts.park])
            verdicts.settle += [held.drop() for held in verdicts.park]

    def begin(self, batch: Sequence[Held]) -> Verdicts:
        """Mark and count possible repetitions; mark poison as lost (R6). See `judge.py`, Note [Take-over].

        Raises:
            DatabaseError: None of them may start.
        """
        verdicts: Verdicts = Verdicts(asked=True)
        starting: list[Held] = []
        for held in batch:
            poison = held.take_overs > self.index.config.max_reclaims
            if held.lapsed():
                verdicts.gone.append(held)
                continue
            take_over(held, poison=poison)
            (verdicts.decided if poison else starting).append(held)
        for held, won in zip(
            starting, write_running([(held, held.outcome) for held in starting], self._tell), strict=True
        ):
            if won is Won.YES:
                held.outcome.seen = version_of(held.outcome.run)
                verdicts.start.append(held)
            elif won is Won.LOCKED:
                held.before = None
                verdicts.locked.append(held)
            else:
                self._lost(held, verdicts)
        return verdicts

    def show(self, batch: Sequence[Held]) -> list[Held] | None:
        """Write that these run, if no row shows it. Return the entries that must get no row; None if all have one.

        Raises:
            django.db.Error: Nothing was written.
        """
        return show(batch, self._tell)

    def _tell(self, outcome: Outcome) -> None:
        self.untold.append(announce(outcome, self.counted))

    def record(self, batch: Sequence[Held]) -> Verdicts:
        """Write outcomes in one transaction and sort the entries: to settle, locked, or gone. See Note [Ledger first].

        Raises:
            django.db.Error: Nothing was written; the call may be repeated.
        """
        entries: list[tuple[int, Outcome, Held | None]] = []
        for number, held in enumerate(batch):
            entries.append((number, held.outcome, held))
            if held.beside:
                entries += [(number, outcome, None) for outcome in _beside(held)]
        won = ledger.record([outcome for _, outcome, _ in entries])
        verdicts: Verdicts = Verdicts(asked=True)
        in_order = sorted(zip(entries, won, strict=True), key=lambda item: (item[0][0], item[0][1].run.due_at))
        for (_, outcome, owner), result in in_order:
            if result is Won.YES:
                tell = announce(outcome, self.counted)
                if outcome.schedule is None:
                    tell = owner.after if owner is not None and owner.after is not None else tell
                if owner is not None and owner.after is not None and owner.is_awaited:
                    owner.after = tell
                else:
                    if tell is not nothing:
                        self.untold.append(tell)
                    if owner is not None:
                        owner.after = None  # otherwise the recorder would call it too
                if owner is not None:
                    owner.taken = not outcome.repeated
            if result is Won.YES and outcome.callback is not None:
                self._callbacks.append(outcome.callback)
            if owner is not None:
                self._after(owner, outcome, result, verdicts)
        return verdicts

    def _after(self, held: Held, outcome: Outcome, result: Won, verdicts: Verdicts) -> None:
        """Choose the settlement after the record. See Note [The next point never comes from a clock]."""
        run, schedule = outcome.run, outcome.schedule
        if result in (Won.LOST, Won.GONE) and held.after is not None:
            held.after = nothing  # the outcome is not recorded, so its receivers must not be called
        if result is Won.LOCKED:
            verdicts.locked.append(held)
        elif result is Won.GONE:
            logger.info("%s was deleted while it ran; its outcome is not recorded.", run.title)
            verdicts.settle.append(held.drop())
        elif result is Won.LOST:
            self._lost(held, verdicts)
        elif held.retry_after_ms is not None:
            verdicts.settle.append(held.wait("retry", held.retry_after_ms))
        else:
            if run.apart and run.status == Status.QUEUED:
                self._unqueued.append(run)
            if schedule is None or not held.in_chain or schedule.queue != held.shard.queue:
                verdicts.settle.append(held.drop())
            else:
                held.generation = max(held.generation, schedule.generation)
                verdicts.settle.append(held.go_to(outcome.next_point, schedule))

    def _lost(self, held: Held, verdicts: Verdicts) -> None:
        """Settle or drop a point that another worker decided. See Note [Ledger first]."""
        run = held.outcome.run
        logger.warning("%s was decided by another worker.", held.title)
        try:
            going_on = self._from_ledger(held, run)
        except DatabaseError as error:  # the rest of this batch is already written: let this lease end
            logger.warning("%s is left to its lease: %s", held.member, error)
            going_on = None
        if going_on is None:
            verdicts.gone.append(held)
        else:
            verdicts.settle.append(going_on)

    def _from_ledger(self, held: Held, run: RunRow) -> Held | None:
        row, pk = ledger.find(run), run.schedule_id
        if not held.in_chain and (row is None or row.status not in OPEN):
            return held.drop()
        if row is None or row.status in OPEN or pk is None:
            return None
        schedule = ledger.load_schedules([pk]).get(pk)
        rows = ledger.load_open_rows([pk]).get(pk)
        if schedule is None or not (schedule.enabled or rows):
            return held.drop()
        held.generation = max(held.generation, schedule.generation)
        try:
            point = rows[0].due_at if rows else chain.next_point(schedule, schedule.state)
        except InvalidRecurrence:
            point = None
        return held.go_to(point, schedule)

    def give_back(self, batch: Sequence[Held], delay_ms: int) -> None:
        """Mark entries as not started, due again after this delay, and undo the rows (and counts) of their start.

        Raises:
            DatabaseError: The rows were not undone; the entries must be settled nevertheless.
        """
        for held in batch:
            held.wait("lapsed" if held.entry.lapsed else "release", delay_ms)
        begun = [(held.outcome, held.before) for held in batch if held.before]
        if begun:
            ledger.undo_start([outcome for outcome, _ in begun], [before for _, before in begun])

    def settle(self, shard: Shard, batch: Sequence[Held]) -> list[Due]:
        """Release leases; return when the next entries come due.

        Raises:
            BrokerError: Settling the entries again is harmless.
        """
        dues = []
        if self._unqueued:  # before the schedule's settle, as a crash in between would leave them to a sweep
            runs = self._unqueued
            sync.put_runs(self.index, runs)
            self._unqueued = []
            shards = [self.index.shard_of(chain.member_of_run(run), run.queue) for run in runs]
            dues = [Due(there, to_ms(run.due_at)) for there, run in zip(shards, runs, strict=True)]
        settled = self.index.settle(shard, [held.settlement for held in batch if held.settlement is not None])
        if self._callbacks:  # on failure the next sweep puts them there
            callbacks, self._callbacks = self._callbacks, []
            sync.put_runs(self.index, callbacks)
        return [*dues, Due(shard, settled.head_ms, settled.now_ms)]


def _beside(held: Held) -> list[Outcome]:
    """Return the outcomes that are recorded only together with an entry's own outcome."""
    outcome = held.outcome
    decided = outcome.run.apart or outcome.run.status not in OPEN
    if not (decided or outcome.owner is not None):
        return []
    if outcome.owner is None:
        for beside in held.beside:
            beside.owner = outcome
    return held.beside
