"""From claimed entries to slots, recorder or back to Redis: carries out what `judge` found."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from django.db import DatabaseError

from .. import chain, failpoints, ledger, mirror
from ..broker import Broker, JobBroker, Place
from ..compat import AnyTask
from ..exceptions import BrokerError
from ..ledger import Won
from .announcing import announce
from .delays import Delays
from .entry import Finished, Held
from .isolation import Isolation, take_overs
from .jobs.dispatch import JobDispatcher
from .jobs.entry import HeldJob
from .jobs.recorder import JobRecorder
from .judge import Verdicts, judge
from .leases import AnyHeld, LeaseKeeper
from .recorder import Due, Recorder
from .slots import Slots
from .starting import Startable, Starter
from .trouble import Trouble

UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS = 1_000, 600_000
StartableJob = tuple[HeldJob, AnyTask]

#: What was offered to the other workers so short a time ago, none of them knows.
OFFER_SECONDS = 10.0
#: What is about to move to another shard comes back after so long, unleased meanwhile, so that it can be moved.
MOVING_MS = 1_000
#: After a failure of the database, its entries come back after so long.
DATABASE_MS = 1_000
#: What cannot begin while somebody else has locked its row comes back after so long.
LOCKED_MS = 1_000


class Dispatcher:
    """Used by the loop's thread only."""

    def __init__(
        self,
        broker: Broker,
        keeper: LeaseKeeper,
        recorder: Recorder,
        slots: Slots,
        trouble: Trouble,
        jobs: JobBroker,
        job_recorder: JobRecorder,
        *,
        name: str,
        due_in_ms: Due,
        stand_back: Callable[[Place], bool],
    ) -> None:
        """`due_in_ms` is told when what was handed back comes due, `stand_back` that others should have it first."""
        self.broker, self.keeper, self.recorder, self.slots, self.trouble = broker, keeper, recorder, slots, trouble
        self.name = name
        self.due_in_ms, self.stand_back = due_in_ms, stand_back
        max_reclaims = broker.config.max_reclaims
        self.starter = Starter(keeper, recorder, slots, name=name, max_reclaims=max_reclaims)
        self.isolation = Isolation(
            keeper, max_reclaims=max_reclaims, locked=lambda: [*recorder.locked.held, *job_recorder.locked.held]
        )
        self.jobs = JobDispatcher(
            jobs, keeper, job_recorder, slots, trouble,
            due_in_ms=due_in_ms, refuse=self._refuse, suspect=self._suspect, isolated=lambda: self.isolation.active,
        )  # fmt: skip
        self._taken_over: deque[Startable | StartableJob] = deque()  # to start as slots become free, see `go_on`
        self._unknown = Delays(UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS)
        self._offered: dict[str, float] = {}  # member -> monotonic second, the oldest first

    @property
    def waiting(self) -> int:
        """Entries that wait for a slot; those that wait to run alone do not count."""
        return self.slots.waiting + len(self._taken_over)

    def capacity(self) -> int:
        """Return how many entries to claim now. Nothing is claimed ahead of those that wait for a free slot."""
        if self.isolation.active:
            return 0
        if self._taken_over:
            return max(0, self.slots.free - len(self._taken_over))
        return self.slots.capacity()

    def dispatch(self, entries: list[Held]) -> bool:
        """Judge claimed entries and set each on its way; False where nothing could be judged and all is handed back."""
        verdicts = self._judged(self._at_home(entries))
        if verdicts is None:
            return False
        at_once = self._sort(verdicts.suspects)
        if self.isolation.active:
            self.release([held for held, _ in (*at_once, *verdicts.execute)], 0)
        else:
            self._start(at_once)
            for held, task in verdicts.execute:
                self.slots.submit(held, task)
        self.go_on()
        return True

    def dispatch_jobs(self, jobs: list[HeldJob]) -> None:
        """Read claimed jobs and set each on its way."""
        self.jobs.dispatch(jobs)
        self.go_on()

    def _suspect(self, job: HeldJob, task: AnyTask) -> None:
        """Take a job that somebody may have executed before; see `_sort`."""
        if self.jobs.is_poison(job):
            self._start([(job, task)])
        elif self.isolation.concerns(job.entry.reclaims + 1):
            self.isolation.add(job)
        else:
            self._taken_over.append((job, task))

    def _at_home(self, entries: list[Held]) -> list[Held]:
        """Hand back what belongs into another shard, and return the others.

        While the number of shards changes, what is busy all the time would be leased at each look, and never be moved.
        """
        moving = [held for held in entries if self._lives_elsewhere(held)]
        if moving:
            self.release(moving, MOVING_MS)
        return [held for held in entries if held not in moving]

    def _lives_elsewhere(self, held: Held) -> bool:
        known = chain.parse_member(held.member) is not None
        return known and self.broker.place_of(held.member, held.place.queue) != held.place

    def _judged(self, entries: list[Held]) -> Verdicts | None:
        """Judge, write and carry out all but the executions; None where the database failed and all is handed back."""
        try:
            verdicts = judge(entries, self.name)
            failpoints.reach("after_judge")
            self._note(verdicts)
        except DatabaseError as error:
            self.trouble.database_failed(error)
            self.release(entries, DATABASE_MS)
            return None
        self.trouble.database_worked()
        self._carry_out(verdicts)
        return verdicts

    def _note(self, verdicts: Verdicts) -> None:
        """Write what belongs into the database before anything is started or settled."""
        if verdicts.stretches:
            locked = set()
            for outcome, won in zip(verdicts.stretches, ledger.record(verdicts.stretches), strict=True):
                if won is Won.YES:
                    announce(outcome)
                elif won is Won.LOCKED:
                    locked.add(chain.member_of(outcome.schedule.pk))
            if locked:
                self.release(verdicts.take_out(locked), LOCKED_MS)
        for run in verdicts.orphans:
            ledger.close_orphan(run, "the schedule was deleted")
        if verdicts.park:
            mirror.note_parked([int(held.member[1:]) for held in verdicts.park])

    def _carry_out(self, verdicts: Verdicts) -> None:
        self.recorder.add(Finished(held, 0.0) for held in verdicts.record)
        for held, point, schedule in verdicts.settle:
            self.recorder.settle(held, point, schedule)
        for held in (*verdicts.drop, *verdicts.park):
            self.recorder.drop(held)
        self.keeper.discard(verdicts.lapsed)
        self._refuse(verdicts.unknown)
        for held, _ in (*verdicts.execute, *verdicts.suspects):
            self._unknown.forget(held.member)
            self._offered.pop(held.member, None)

    def _refuse(self, unknown: Sequence[AnyHeld]) -> None:
        """Hand back what this code does not know: first to the other workers at once, then with a growing delay.

        Without the offer, the first worker of a place, which wakes at the very moment at which it comes due, would
        take it again and again, and the one that knows it never would. It is made now and then only, since whatever
        else is due there waits meanwhile: see `Agenda.stand_back`.
        """
        now = time.monotonic()
        while self._offered and now - next(iter(self._offered.values())) >= OFFER_SECONDS:
            del self._offered[next(iter(self._offered))]
        delays: dict[int, list[AnyHeld]] = {}
        for held in unknown:
            delay_ms = 0
            if held.member not in self._offered and self.stand_back(held.place):
                self._offered[held.member] = now
            else:
                delay_ms = self._unknown.next(held.member, now)
            delays.setdefault(delay_ms, []).append(held)
        for delay_ms, group in delays.items():
            self.release(group, delay_ms)

    # -- suspects

    def _sort(self, suspects: Sequence[Startable]) -> list[Startable]:
        """Return the suspects to be started at once; the others wait for their turn. See `isolation.py`, Note [Alone].

        A take-over begins only when a slot is free for it, so that what is counted has been executed.
        """
        at_once: list[Startable] = []
        for held, task in suspects:
            assert held.outcome is not None  # noqa: S101 - suspects are judged
            run = held.outcome.run
            if self.starter.is_poison(run):
                self._start([(held, task)])
            elif self.isolation.concerns(take_overs(run)):
                self.isolation.add(held)
            elif take_overs(run):
                self._taken_over.append((held, task))
            else:
                at_once.append((held, task))
        return at_once

    def go_on(self) -> None:
        """Start those whose turn has come meanwhile."""
        if self.isolation.active:
            self._isolate()
        elif self._taken_over:
            count = min(self.slots.free, len(self._taken_over))
            self._start([self._taken_over.popleft() for _ in range(count)])

    def _isolate(self) -> None:
        if not self.isolation.waiting:
            return
        self.release_waiting()
        held = self.isolation.next()
        if held is not None:
            self.release(self.isolation.take_waiting(), 0)
            self._start_alone(held)
        elif self.isolation.seconds_left() == 0:
            for refused in self.isolation.take_waiting():
                self.release([refused], self.isolation.delay_ms(refused))

    def _start_alone(self, held: AnyHeld) -> None:
        """Judge it anew, since it may have waited for long, and start it."""
        if isinstance(held, HeldJob):
            assert held.task is not None  # noqa: S101 - it was read
            self._start([(held, held.task)])
            return
        held.outcome, held.beside = None, []
        verdicts = self._judged([held])
        if verdicts is not None:
            self._start(verdicts.suspects)
            for fresh, task in verdicts.execute:
                self.slots.submit(fresh, task)

    def _start(self, suspects: Sequence[Startable | StartableJob]) -> None:
        ordered = sorted(suspects, key=_kind_and_place)
        for (jobs, place), items in groupby(ordered, key=_kind_and_place):
            group: Any = list(items)
            try:
                if jobs:
                    self.jobs.start(place, group)
                elif locked := self.starter.start(group):
                    self.release(locked, LOCKED_MS)
            except DatabaseError as error:
                self.trouble.database_failed(error, writing=True)
                self.release([held for held, _ in group], DATABASE_MS)
            except BrokerError as error:
                self.trouble.redis_failed(error)
                self.keeper.discard(held for held, _ in group)

    # -- handing back

    def release(self, entries: Sequence[AnyHeld], delay_ms: int) -> None:
        """Hand entries back unstarted. Where Redis does not answer, their leases end by themselves."""
        jobs = [held for held in entries if isinstance(held, HeldJob)]
        if jobs:
            self.jobs.release(jobs, delay_ms)
        points = [held for held in entries if isinstance(held, Held)]
        if points:
            self._release_points(points, delay_ms)

    def _release_points(self, entries: Sequence[Held], delay_ms: int) -> None:
        groups: dict[tuple[Place, bool], list[Held]] = {}
        for held in entries:
            groups.setdefault((held.place, held.entry.lapsed), []).append(held)
        self.keeper.discard(entries)
        self._undo_starts(entries)
        try:
            for (place, lapsed), group in groups.items():
                self.broker.release(place, [held.lease(delay_ms) for held in group], lapsed=lapsed)
                self.due_in_ms(place, delay_ms)
        except BrokerError as error:
            self.trouble.redis_failed(error)

    def _undo_starts(self, entries: Sequence[Held]) -> None:
        """What did not start must count no take-over, although its row says that it runs."""
        begun = [(held.outcome, held.before) for held in entries if held.outcome and held.before]
        if begun:
            try:
                ledger.undo_start([outcome for outcome, _ in begun], [before for _, before in begun])
            except DatabaseError as error:
                self.trouble.database_failed(error)

    def release_waiting(self) -> None:
        """Hand back at once whatever waits for a slot."""
        taken_over = [held for held, _ in self._taken_over]
        self._taken_over.clear()
        self.release([*self.slots.take_back(), *taken_over], 0)

    def release_all(self) -> None:
        """Hand back at once whatever has not started, also what waits to run alone."""
        self.release_waiting()
        self.release(self.isolation.take_waiting(), 0)


def _kind_and_place(item: Startable | StartableJob) -> tuple[bool, Place]:
    return isinstance(item[0], HeldJob), item[0].place
