"""Due points as the worker works on them: `Kind`, carried out by the ledger, the mirror and the scripts on points.

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
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError

from .. import chain, failpoints, ledger, mirror
from ..broker import Index, Shard
from ..counters import Counts
from ..exceptions import InvalidRecurrence
from ..ledger import Outcome, Won, version_of
from ..models import Run, Schedule, ScheduleState, Status
from ..rows import RunRow
from ..timing import from_ms, to_ms
from .announcing import announce
from .base import AGAIN_MS, Claimed, Due, Verdicts
from .held_point import HeldPoint, PointCalls, PointVerdicts
from .judge import judge
from .starting import show, take_over, write_running
from .timeouts import Timeouts

logger = logging.getLogger("django_delayq.worker")

#: As the claims of other kinds name it.
NAME = "points"


class Points(PointCalls):
    """See `Kind`."""

    name = NAME
    tables = (Schedule, ScheduleState, Run)

    def __init__(self, broker: Index, timeouts: Timeouts) -> None:
        self.broker, self.timeouts, self.counted = broker, timeouts, Counts()
        self.untold: deque[Callable[[], None]] = deque()
        self._lease_ms = int(broker.config.lease_seconds * 1000)
        self._unqueued: list[RunRow] = []  # points that became runs of their own, to be put into Redis
        self._callbacks: list[RunRow] = []  # what follows outcomes, to be put there too

    # -- from Redis

    def claim(
        self, shard: Shard, limit: int, request: int, deadline: float, most: int | None = None
    ) -> Claimed[HeldPoint]:
        """See `Kind.claim`."""
        claim = self.broker.claim(shard, limit=limit, lease_ms=self._lease_ms, request=request, most=most)
        same: dict[str, Any] = {"fence": claim.fence, "worker": self.broker.worker, "claimed_at": from_ms(claim.now_ms)}
        entries = [
            HeldPoint(
                self, shard, entry.member, claim.holder, deadline,
                entry=entry, point=from_ms(entry.point_ms or 0), **same,
            )
            for entry in claim.entries
        ]  # fmt: skip
        return Claimed(claim.now_ms, claim.head_ms, claim.epoch, entries, claim.damaged)

    def renew(self, shard: Shard, batch: Sequence[HeldPoint]) -> set[str]:
        """See `Kind.renew`."""
        return self.broker.renew(shard, [(held.member, held.lease) for held in batch], lease_ms=self._lease_ms)

    # -- before they run

    def judge(self, batch: Sequence[HeldPoint]) -> Verdicts[HeldPoint]:
        """See `Kind.judge`."""
        try:
            verdicts = judge(batch, self.broker)
            failpoints.reach("after_judge")
            decided = [held for held in verdicts.settle if held.entry.lapsed and held.in_chain]
            if decided:
                self._unqueued += ledger.load_queued([(int(held.member[1:]), held.point) for held in decided])
            self._callbacks += verdicts.again
            if verdicts.stretches or verdicts.orphans or verdicts.park:
                self._note(verdicts)
        except DatabaseError as error:
            verdicts = PointVerdicts(back=[(held, AGAIN_MS) for held in batch], asked=True, error=error)
        return verdicts

    def _note(self, verdicts: PointVerdicts) -> None:
        """Write what belongs into the database before anything is started or settled."""
        locked = set()
        recorded = ledger.record(verdicts.stretches) if verdicts.stretches else []
        for outcome, won in zip(verdicts.stretches, recorded, strict=True):
            if won is Won.YES:
                self.untold.append(announce(outcome, self.counted))
            elif won is Won.LOCKED:
                locked.add(chain.member_of(outcome.run.schedule_id or 0))
        if locked:
            verdicts.put_back(locked)
        for run in verdicts.orphans:
            ledger.close_orphan(run, "the schedule was deleted")
        if verdicts.park:
            mirror.note_parked([int(held.member[1:]) for held in verdicts.park])
            verdicts.settle += [held.drop() for held in verdicts.park]

    def begin(self, batch: Sequence[HeldPoint]) -> Verdicts[HeldPoint]:
        """See `Kind.begin` and `starting.py`, Note [Take-over]."""
        verdicts: Verdicts[HeldPoint] = Verdicts(asked=True)
        starting: list[HeldPoint] = []
        for held in batch:
            poison = held.take_overs > self.broker.config.max_reclaims
            if held.lapsed():
                verdicts.gone.append(held)
                continue
            take_over(held, poison=poison)
            (verdicts.decided if poison else starting).append(held)
        for held, won in zip(starting, write_running([(held, held.outcome) for held in starting]), strict=True):
            if won is Won.YES:
                held.outcome.seen = version_of(held.outcome.run)
                verdicts.start.append(held)
            elif won is Won.LOCKED:
                held.before = None  # nothing was written
                verdicts.locked.append(held)
            else:
                self._lost(held, verdicts)
        return verdicts

    def show(self, batch: Sequence[HeldPoint]) -> list[HeldPoint] | None:
        """See `Kind.show`."""
        return show(batch)

    # -- after they ran

    def record(self, batch: Sequence[HeldPoint]) -> Verdicts[HeldPoint]:
        """See `Kind.record` and Note [Ledger first]."""
        entries: list[tuple[int, Outcome, HeldPoint | None]] = []
        for number, held in enumerate(batch):
            entries.append((number, held.outcome, held))
            if held.beside:
                entries += [(number, outcome, None) for outcome in _beside(held)]
        failpoints.reach("before_ledger")
        won = ledger.record([outcome for _, outcome, _ in entries])
        failpoints.reach("after_ledger")
        verdicts: Verdicts[HeldPoint] = Verdicts(asked=True)
        in_order = sorted(zip(entries, won, strict=True), key=lambda item: (item[0][0], item[0][1].run.due_at))
        for (_, outcome, owner), result in in_order:
            if result is Won.YES:
                tell = announce(outcome, self.counted)
                if outcome.schedule is None:
                    tell = owner.after if owner is not None and owner.after is not None else tell
                if owner is not None and owner.is_awaited:
                    owner.after = tell
                else:
                    self.untold.append(tell)
                    if owner is not None:
                        owner.after = None  # else the recorder would call it too
                if owner is not None:
                    owner.taken = not outcome.repeated
            if outcome.callback is not None:
                self._callbacks.append(outcome.callback)
            if owner is not None:
                self._after(owner, outcome, result, verdicts)
        return verdicts

    def _after(self, held: HeldPoint, outcome: Outcome, result: Won, verdicts: Verdicts[HeldPoint]) -> None:
        """Say what follows what was recorded: run members leave, a chain goes on. See Note [Next point]."""
        run, schedule = outcome.run, outcome.schedule
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

    def _lost(self, held: HeldPoint, verdicts: Verdicts[HeldPoint]) -> None:
        """Somebody else decided this point. See Note [Ledger first]."""
        run = held.outcome.run
        logger.warning("%s was decided by another worker.", held.title)
        try:
            going_on = self._from_ledger(held, run)
        except DatabaseError as error:  # whatever else is in this batch is written: let its lease end
            logger.warning("%s is left to its lease: %s", held.member, error)
            going_on = None
        if going_on is None:
            verdicts.gone.append(held)
        else:
            verdicts.settle.append(going_on)

    def _from_ledger(self, held: HeldPoint, run: RunRow) -> HeldPoint | None:
        row, pk = ledger.find(run), run.schedule_id
        if not held.in_chain and (row is None or not Status(row.status).is_open):
            return held.drop()
        if row is None or Status(row.status).is_open or pk is None:
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

    # -- back to Redis

    def give_back(self, batch: Sequence[HeldPoint], delay_ms: int) -> None:
        """See `Kind.give_back`: what did not start counts no take-over, although its row says that it runs."""
        for held in batch:
            held.wait("lapsed" if held.entry.lapsed else "release", delay_ms)
        begun = [(held.outcome, held.before) for held in batch if held.before]
        if begun:
            ledger.undo_start([outcome for outcome, _ in begun], [before for _, before in begun])

    def settle(self, shard: Shard, batch: Sequence[HeldPoint]) -> list[Due]:
        """See `Kind.settle`."""
        dues = []
        if self._unqueued:  # before the schedule goes on: see Note [A run of its own]
            runs = self._unqueued
            mirror.put_runs(self.broker, runs)
            self._unqueued = []
            shards = [self.broker.shard_of(chain.member_of_run(run), run.queue) for run in runs]
            dues = [Due(there, to_ms(run.due_at)) for there, run in zip(shards, runs, strict=True)]
        settled = self.broker.settle(shard, [held.settlement for held in batch if held.settlement is not None])
        failpoints.reach("after_settle")
        if self._callbacks:  # what is missed here, the next sweep puts there
            callbacks, self._callbacks = self._callbacks, []
            mirror.put_runs(self.broker, callbacks)
        return [*dues, Due(shard, settled.head_ms, settled.now_ms)]


def _beside(held: HeldPoint) -> list[Outcome]:
    """Return what is to be recorded with an entry's own outcome, and without that not at all."""
    outcome = held.outcome
    decided = outcome.run.apart or not Status(outcome.run.status).is_open
    if not (decided or outcome.owner is not None):
        return []
    if outcome.owner is None:
        for beside in held.beside:
            beside.owner = outcome
    return held.beside
