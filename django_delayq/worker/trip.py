"""The steps of an entry, batch by batch: claim, renew, judge, begin, record, settle. In the loop's thread unless noted.

Note [Ledger before Redis]
Rule R3. An outcome is written to the ledger first; Redis is settled only for outcomes that the ledger took. A crash in
between repeats a wake-up, which finds the point decided; the reverse sequence would lose the outcome. A worker that
loses the compare-and-set does not change Redis, because another worker may have the lease.

Note [The next point never comes from a clock]
Rule R4. The next point is computed from the decided point and the definition as the recording transaction sees it. It
is proposed even if it has already passed; a late point is judged when it is claimed.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from django.db import DatabaseError

from .. import ledger, sync
from ..index import Broker, Claim, Shard
from ..index.counters import Counts
from ..ledger import Outcome, Won, chain, get_version
from ..ledger.rows import RunRow
from ..models import Status
from ..models.run import OPEN
from ..recurrence import from_ms, to_ms
from .announcing import announce
from .held import AGAIN_MS, Lease, Verdicts
from .judge import judge, show, take_over, write_running

logger = logging.getLogger("django_delayq.worker")

#: When something comes due in a shard (None for never), and the current time, both in ms by the server's clock.
Due = tuple[Shard, int | None, int]


class Trip:
    """A worker's operations on entries, by an index, the ledger and the sync."""

    def __init__(self, index: Broker) -> None:
        self.index = index
        #: Counts of outcomes that are not in Redis yet.
        self.counted = Counts()
        #: Calls of receivers, made by the loop. None of them raises.
        self.untold: deque[Callable[[], None]] = deque()
        self._lease_ms = int(index.config.lease_seconds * 1000)
        self._unqueued: list[RunRow] = []  # points that became separate runs, to be put into Redis
        self._callbacks: list[RunRow] = []  # callbacks, and rows of reused keys, to be put into Redis

    def claim(
        self, shard: Shard, limit: int, request: int, deadline: float, most: int | None = None
    ) -> tuple[Claim, list[Lease]]:
        """Lease due entries, up to `most` leases in the shard. Repeating a `request` repeats a lost reply."""
        claim = self.index.claim(shard, limit=limit, lease_ms=self._lease_ms, request=request, most=most)
        worker, claimed_at = self.index.worker, from_ms(claim.now_ms)
        return claim, [
            Lease(
                shard, entry.member, claim.holder, deadline, entry,
                claim.fence, worker, claimed_at, from_ms(entry.point_ms or 0), entry.member.startswith("s"),
            )
            for entry in claim.entries
        ]  # fmt: skip

    def renew(self, shard: Shard, batch: Sequence[Lease]) -> set[str]:
        """Extend leases; return the members whose lease is lost. Called in the renewing thread."""
        return self.index.renew(shard, [(held.member, held.holder) for held in batch], lease_ms=self._lease_ms)

    def judge(self, batch: Sequence[Lease]) -> Verdicts:
        """Read the rows and decide; write the rows that must exist before anything is started."""
        try:
            verdicts = judge(batch, self.index)
            self._callbacks += verdicts.again
            if verdicts.stretches or verdicts.orphans or verdicts.broken:
                self._note(verdicts)
        except DatabaseError as error:
            verdicts = Verdicts(back=dict.fromkeys(batch, AGAIN_MS), error=error)
        return verdicts

    def _note(self, verdicts: Verdicts) -> None:
        locked = set()
        recorded = ledger.record(verdicts.stretches) if verdicts.stretches else []
        for outcome, won in zip(verdicts.stretches, recorded, strict=True):
            if won is Won.YES:
                self._announce(outcome)
            elif won is Won.LOCKED:
                locked.add(chain.format_member(outcome.run.schedule_id or 0))
        if locked:
            groups = verdicts.start, verdicts.suspects, verdicts.decided, verdicts.unknown, verdicts.broken
            verdicts.hold_back(groups, lambda held: held.member in locked, AGAIN_MS)
        for run in verdicts.orphans:
            ledger.close_orphan(run, "the schedule was deleted")
        if verdicts.broken:
            sync.read_wanted([int(held.member[1:]) for held in verdicts.broken])
            verdicts.settle += [held.drop() for held in verdicts.broken]

    def begin(self, batch: Sequence[Lease]) -> Verdicts:
        """Mark and count possible repetitions; mark poison as lost (R6). After a DatabaseError none may start."""
        verdicts, starting = Verdicts(), list[Lease]()
        for held in batch:
            poison = held.take_overs > self.index.config.max_reclaims
            if held.is_lapsed():
                verdicts.gone.append(held)
            else:
                take_over(held, poison=poison)
                (verdicts.decided if poison else starting).append(held)
        written = write_running([(held, held.outcome) for held in starting], self._announce)
        for held, won in zip(starting, written, strict=True):
            if won is Won.YES:
                held.outcome.seen = get_version(held.outcome.run)
                verdicts.start.append(held)
            elif won is Won.LOCKED:
                held.before = None
                verdicts.locked.append(held)
            else:
                self._leave_lost(held, verdicts)
        return verdicts

    def show(self, batch: Sequence[Lease]) -> list[Lease] | None:
        return show(batch, self._announce)

    def _announce(self, outcome: Outcome) -> None:
        if (call := announce(outcome, self.counted)) is not None:
            self.untold.append(call)

    def record(self, batch: Sequence[Lease]) -> Verdicts:
        """Write all outcomes or, after a database error, none; sort the entries. See Note [Ledger before Redis]."""
        entries: list[tuple[int, Outcome, Lease | None]] = []
        for number, held in enumerate(batch):
            entries.append((number, held.outcome, held))
            if held.beside:
                entries += [(number, outcome, None) for outcome in _list_companions(held)]
        won = ledger.record([outcome for _, outcome, _ in entries])
        verdicts = Verdicts()
        in_order = sorted(zip(entries, won, strict=True), key=lambda item: (item[0][0], item[0][1].run.due_at))
        for (_, outcome, owner), result in in_order:
            if result is Won.YES:
                call = announce(outcome, self.counted)
                if owner is not None:
                    call = owner.after if outcome.schedule is None else call
                    owner.after, owner.taken = None, not outcome.repeated
                if owner is not None and owner.awaited is not None:
                    owner.after = call
                elif call is not None:
                    self.untold.append(call)
                if outcome.callback is not None:
                    self._callbacks.append(outcome.callback)
            if owner is not None:
                self._choose_settlement(owner, outcome, result, verdicts)
        return verdicts

    def _choose_settlement(self, held: Lease, outcome: Outcome, result: Won, verdicts: Verdicts) -> None:
        """Choose the settlement after the record. See Note [The next point never comes from a clock]."""
        run, schedule = outcome.run, outcome.schedule
        if result in (Won.LOST, Won.GONE):
            held.after = None  # the outcome is not recorded, so its receivers must not be called
        if result is Won.LOCKED:
            verdicts.locked.append(held)
        elif result is Won.GONE:
            logger.info("%s was deleted while it ran; its outcome is not recorded.", run.title)
            verdicts.settle.append(held.drop())
        elif result is Won.LOST:
            self._leave_lost(held, verdicts)
        elif held.retry_after_ms is not None:
            verdicts.settle.append(held.wait("retry", held.retry_after_ms))
        else:
            if run.separate and run.status == Status.QUEUED:
                self._unqueued.append(run)
            if schedule is None or not held.in_chain or schedule.queue != held.shard.queue:
                verdicts.settle.append(held.drop())
            else:
                held.generation = max(held.generation, schedule.generation)
                verdicts.settle.append(held.go_to(outcome.next_point, schedule))

    def _leave_lost(self, held: Lease, verdicts: Verdicts) -> None:
        """Let the lease run out, because another worker decided the point. See Note [Ledger before Redis]."""
        logger.warning("%s was decided by another worker.", held.title)
        verdicts.gone.append(held)

    def give_back(self, delays_ms: Mapping[Lease, int]) -> None:
        """Mark entries as not started and undo the rows of their start. Settle them even after a DatabaseError."""
        for held, delay_ms in delays_ms.items():
            held.wait("lapsed" if held.entry.lapsed else "release", delay_ms)
        begun = [(held.outcome, held.before) for held in delays_ms if held.before]
        if begun:
            ledger.undo_start([outcome for outcome, _ in begun], [before for _, before in begun])

    def settle(self, shard: Shard, batch: Sequence[Lease]) -> list[Due]:
        """Release leases; return when the next entries come due. Settling entries again is harmless."""
        dues = list[Due]()
        if self._unqueued:  # before the schedule's settle, as a crash in between would leave them to a sweep
            runs = self._unqueued
            sync.put_runs(self.index, runs)
            self._unqueued = []
            shards = [self.index.get_shard(chain.format_run_member(run), run.queue) for run in runs]
            dues = [(there, to_ms(run.due_at), 0) for there, run in zip(shards, runs, strict=True)]
        settled = self.index.settle(shard, [held.settlement for held in batch if held.settlement is not None])
        if self._callbacks:  # on failure the next sweep puts them there
            callbacks, self._callbacks = self._callbacks, []
            sync.put_runs(self.index, callbacks)
        return [*dues, (shard, settled.head_ms, settled.now_ms)]


def _list_companions(held: Lease) -> list[Outcome]:
    """Return the outcomes that are recorded only together with an entry's own outcome."""
    outcome = held.outcome
    decided = outcome.run.separate or outcome.run.status not in OPEN
    if not (decided or outcome.owner is not None):
        return []
    if outcome.owner is None:
        for beside in held.beside:
            beside.owner = outcome
    return held.beside
