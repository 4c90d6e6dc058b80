"""From claimed entries to slots, recorder or back to Redis: carries out what `judge` found."""

from collections.abc import Sequence

from django.db import DatabaseError

from .. import ledger, mirror
from ..broker import Broker, Place
from ..compat import AnyTask
from ..exceptions import BrokerError
from ..ledger import Won, version_of
from ..models import Run, Status
from .entry import Finished, Held
from .judge import Verdicts, judge
from .leases import LeaseKeeper
from .recorder import Due, Recorder, announce
from .slots import Slots
from .trouble import Trouble

UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS = 30_000, 600_000


class Dispatcher:
    """Used by the loop's thread only."""

    def __init__(
        self,
        broker: Broker,
        keeper: LeaseKeeper,
        recorder: Recorder,
        slots: Slots,
        trouble: Trouble,
        *,
        name: str,
        due_in_ms: Due,
    ) -> None:
        """`due_in_ms` is told when what was handed back comes due."""
        self.broker, self.keeper, self.recorder, self.slots, self.trouble = broker, keeper, recorder, slots, trouble
        self.name = name
        self.due_in_ms = due_in_ms
        self._unknown_ms: dict[str, int] = {}

    def dispatch(self, entries: list[Held]) -> bool:
        """Judge claimed entries and set each on its way; False where nothing could be judged and all is handed back."""
        try:
            verdicts = judge(entries, self.name)
            self._note(verdicts)
        except DatabaseError as error:
            self.trouble.database_failed(error)
            self.release(entries, 1000)
            return False
        self._carry_out(verdicts)
        suspects = [held for held, _ in verdicts.suspects]
        try:
            self._start_suspects(verdicts)
        except DatabaseError as error:
            self.trouble.database_failed(error)
            self.release(suspects, 1000)
        except BrokerError as error:
            self.trouble.redis_failed(error)
            self.keeper.discard(suspects)
        self.trouble.database_worked()
        for held, task in verdicts.execute:
            self.slots.submit(held, task)
        return True

    def _note(self, verdicts: Verdicts) -> None:
        """Write what belongs into the database before anything is started or settled."""
        if verdicts.stretches:
            for outcome, won in zip(verdicts.stretches, ledger.record(verdicts.stretches), strict=True):
                if won is Won.YES:
                    announce(outcome)
        for run in verdicts.orphans:
            ledger.close_orphan(run, "the schedule was deleted")
        if verdicts.park:
            mirror.note_parked([int(held.member[1:]) for held in verdicts.park])

    def _carry_out(self, verdicts: Verdicts) -> None:
        self.recorder.add(Finished(held, 0.0) for held in verdicts.record)
        for held, point in verdicts.settle:
            self.recorder.settle(held, point)
        for held in verdicts.park:
            self.recorder.settle(held, None)
        for held in verdicts.unknown:
            delay = min(self._unknown_ms.get(held.member, UNKNOWN_TASK_FIRST_MS // 2) * 2, UNKNOWN_TASK_MOST_MS)
            self._unknown_ms[held.member] = delay
            self.release([held], delay)

    def _start_suspects(self, verdicts: Verdicts) -> None:
        """Rule R2b: prove the lease after the row was read, write a running row, only then execute."""
        tasks: dict[Held, AnyTask] = dict(verdicts.suspects)
        places: dict[Place, list[Held]] = {}
        for held in tasks:
            places.setdefault(held.place, []).append(held)
        for place, entries in places.items():
            kept = self.keeper.prove(place, entries)
            self.keeper.discard(set(entries) - set(kept))
            poisoned = [held for held in kept if self._take_over(held)]
            starting = [held for held in kept if held not in poisoned]
            self.recorder.add(Finished(held, 0.0) for held in poisoned)
            outcomes = [held.outcome for held in starting if held.outcome is not None]
            for held, outcome, won in zip(starting, outcomes, ledger.start(outcomes), strict=True):
                if won is Won.YES:
                    outcome.seen = version_of(outcome.run)
                    self.slots.submit(held, tasks[held])
                else:
                    self.recorder.lost(held, outcome.run)

    def _take_over(self, held: Held) -> bool:
        """Fill in the running row; True where this point has killed its workers too often (rule R6)."""
        outcome = held.outcome
        assert outcome is not None  # noqa: S101 - suspects are judged
        run: Run = outcome.run
        held.before = {"status": run.status, "reclaims": run.reclaims, "fence": run.fence, "worker": run.worker}
        if run.status == Status.RUNNING:
            run.reclaims += 1
        run.fence, run.worker = held.fence, self.name
        run.claimed_at = run.claimed_at or held.claimed_at
        run.status = Status.RUNNING
        if run.reclaims <= self.broker.config.max_reclaims:
            run.started_at = held.claimed_at
            return False
        run.status, run.reason, run.finished_at = Status.LOST, "poison", held.claimed_at
        return True

    def release(self, entries: Sequence[Held], delay_ms: int) -> None:
        """Hand entries back unstarted. Where Redis does not answer, their leases end by themselves."""
        places: dict[Place, list[Held]] = {}
        for held in entries:
            places.setdefault(held.place, []).append(held)
        self.keeper.discard(entries)
        self._undo_starts(entries)
        try:
            for place, group in places.items():
                self.broker.release(place, [held.lease(delay_ms) for held in group])
                self.due_in_ms(place, delay_ms)
        except BrokerError as error:
            self.trouble.redis_failed(error)

    def _undo_starts(self, entries: Sequence[Held]) -> None:
        """What did not start must count no reclaim, although its row says that it runs."""
        begun = [(held.outcome, held.before) for held in entries if held.outcome and held.before]
        if begun:
            try:
                ledger.undo_start([outcome for outcome, _ in begun], [before for _, before in begun])
            except DatabaseError as error:
                self.trouble.database_failed(error)

    def release_waiting(self) -> None:
        """Hand back at once whatever waits for a slot."""
        self.release(self.slots.take_back(), 0)
