"""The worker's loop: claim what is due, have it judged, executed and recorded, sleep until the next point.

`round()` does what can be done now and returns the seconds until there may be more; `run()` is a short loop over it.

Note [Rounds]
Whatever a worker does again and again is a `round()`: of the loop, of `LeaseKeeper`, of `Upkeep`. A thread only calls
it, and waits in between. So whoever has a clock and a server of its own can play a worker in one thread, in any order
of rounds, without a thread or a second that passes.
"""

import logging
import queue
import time
from contextlib import suppress

from django.db import Error, connections

from ..broker import Broker, JobBroker, Place
from ..compat import AnyTask
from ..exceptions import BrokerError
from . import status
from .agenda import Agenda
from .claims import Claims
from .contexts import Contexts
from .dispatch import Dispatcher
from .entry import Finished, Held
from .execution import execute, give_up
from .jobs.claims import JobClaims
from .jobs.entry import FinishedJob, HeldJob
from .jobs.execution import execute_job, give_up_job
from .jobs.recorder import JobRecorder
from .leases import LeaseKeeper
from .options import WorkerOptions
from .recorder import Recorder
from .recycling import Recycling
from .showing import Showing
from .slots import PATIENCE_SECONDS, Slots
from .timeouts import Timeouts, Watch
from .trouble import Trouble
from .upkeep import Upkeep

logger = logging.getLogger("django_delayq.worker")

#: Redis answers a claim within milliseconds; what takes longer is a server in trouble.
TIMEOUT_SECONDS = 5.0
#: While claimed entries wait for a slot, look again so soon: they may have to be handed back.
WAITING_SECONDS = 0.25
#: Threads without work end at once; one that hangs in a task is not waited for.
SLOTS_SECONDS = 1.0
WAKE = "wake"


class Worker:
    """One process' worth of work on some queues. `run()` returns an exit status of `status.py`.

    It raises `ForeignLayout` where the prefix is, or becomes, another database's.

    Guarantees: an entry that this worker cannot finish (killed, cut off) comes due again when its lease ends. Does not
    guarantee that a task runs only once; its outcome is recorded once.
    """

    def __init__(self, options: WorkerOptions, *, slots: type[Slots] = Slots) -> None:
        """`slots`: what executes; by default threads."""
        self.options = options
        self.broker = Broker(timeout_seconds=TIMEOUT_SECONDS, worker=options.name)
        self.config = self.broker.config
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.places = self.broker.places(options.queues)
        self.agenda = Agenda(self.broker, self.places, cap_seconds=self.config.idle_cap_seconds, alone=options.burst)
        due = {"due_at_ms": self.agenda.due_at_ms, "due_in_ms": self.agenda.due_in_ms}
        self.jobs = JobBroker(self.broker)
        self.keeper = LeaseKeeper(self.broker, self.jobs, lease_seconds=self.config.lease_seconds)
        self.recorder = Recorder(self.broker, self.keeper, **due)
        self.job_recorder = JobRecorder(self.jobs, self.keeper, due_in_ms=self.agenda.due_in_ms)
        self.timeouts = Timeouts(grace_seconds=self.config.timeout_grace_seconds, overdue=self._hangs)
        self.contexts = Contexts()
        self.slots = slots(options.threads, self._execute, self.inbox.put)
        self.trouble = Trouble(self.broker, self.places)
        self.dispatcher = Dispatcher(
            self.broker,
            self.keeper,
            self.recorder,
            self.slots,
            self.trouble,
            self.jobs,
            self.job_recorder,
            name=options.name,
            due_in_ms=self.agenda.due_in_ms,
            stand_back=self.agenda.stand_back,
        )
        after_seconds = self.config.running_after_seconds
        self.showing = Showing(self.slots, self.keeper, self.trouble, after_seconds=after_seconds)
        self.upkeep = Upkeep(self.broker, self.places, wake=self.wake, hinted=self.inbox.put, fail=self.fail)
        self.claims = Claims(
            self.broker, self.keeper, self.dispatcher, self.agenda, self.trouble, self.upkeep,
            places=self.places, fail=self.fail,
        )  # fmt: skip
        self.job_claims = JobClaims(
            self.jobs, self.keeper, self.dispatcher, self.agenda, self.trouble,
            places=self.places, same_index=self.claims.same_index,
        )  # fmt: skip
        self._jobs_first: set[Place] = set()  # where points were first the last time, and jobs were due
        self.recycling = Recycling(options)
        self.stopping = False
        self.aborted = False
        self.grace_ends_at = 0.0  # monotonic, once it drains
        self.leaving = ""  # why this process is to be recycled
        self.failure: Exception | None = None

    # -- life

    def wake(self) -> None:
        """Make the loop look again. Safe in a signal handler: SimpleQueue.put is reentrant."""
        self.inbox.put(WAKE)

    def stop(self) -> None:
        """Ask for a drain; a second call ends it at once. Safe in a signal handler."""
        self.aborted = self.stopping
        self.stopping = True
        self.wake()

    def fail(self, error: Exception) -> None:
        """End this worker: it must not go on. `run` raises the error after the drain."""
        self.failure = error
        self.stopping = True
        self.wake()

    def run(self) -> int:
        """Work until stopped or to be recycled, in burst mode until nothing is due; then drain."""
        try:
            self.upkeep.begin(burst=self.options.burst, stopping=lambda: self.stopping)
            self.keeper.start()
            self.timeouts.start()
            self.slots.start()
            if not self.stopping:
                self._tell(status.WORKING)
            seconds = 0.0
            while not self.stopping and not self.leaving:
                seconds = self.round(seconds)
            exit_status = self.drain()
            if self.failure is not None:
                raise self.failure
            return exit_status
        finally:
            self.keeper.stop()  # first: what did not end is not to be kept from others while the rest ends
            self.upkeep.end()
            self.timeouts.stop()
            self.broker.close()
            connections.close_all()

    def _tell(self, word: str) -> None:
        if self.options.tell is not None:
            self.options.tell(word)

    def round(self, wait_seconds: float = 0.0) -> float:
        """Wait at most so long for what is reported or told, and do what can be done then; see Note [Rounds].

        Returns the seconds until there may be more.
        """
        self._wait(wait_seconds)
        if self.stopping or self.leaving:
            return 0.0
        try:
            seconds = self.tick()
            self.leaving = self.leaving or self.recycling.wanted(self.runs)
            return 0.0 if self.leaving else seconds
        except Exception:  # one thing that nobody foresaw must not end what everything else depends on
            if self.options.burst:
                raise
            logger.exception("Something unforeseen; going on.")
            return 1.0

    def _wait(self, seconds: float) -> None:
        if seconds > 0 and self.slots.holding_back:
            seconds = min(seconds, PATIENCE_SECONDS)
        try:
            item = self.inbox.get(timeout=seconds) if seconds > 0 else self.inbox.get_nowait()
        except queue.Empty:
            self.slots.nothing_ended(waited=seconds > 0)
            return
        with suppress(queue.Empty):
            while True:
                self._receive(item)
                item = self.inbox.get_nowait()

    def _execute(self, held: Held | HeldJob, task: AnyTask) -> Finished | FinishedJob | None:
        """Call a task. Called in a slot's thread."""
        if isinstance(held, HeldJob):
            return self.contexts.call(execute_job, held, task, self.options.name, self.timeouts)
        return self.contexts.call(execute, held, task, self.options.name, self.timeouts)

    @property
    def runs(self) -> int:
        """How many executions were recorded, each attempt is one; what was never called is none."""
        return self.recorder.runs + self.job_recorder.runs

    @property
    def _recorded(self) -> bool:
        return self.recorder.idle and self.job_recorder.idle

    def _receive(self, item: object) -> None:
        if isinstance(item, FinishedJob):
            self.job_recorder.add(item)
            if item.hung:
                self.leaving = self.leaving or f"{item.held.title} hangs in it"
        elif isinstance(item, Finished):
            self.recorder.add([item])
            if item.hung and item.held.outcome is not None:
                self.leaving = self.leaving or f"a task of {item.held.outcome.schedule.name!r} hangs in it"
        elif isinstance(item, tuple):
            self.agenda.due_at_ms(*item)

    def _hangs(self, watch: Watch) -> None:
        """Report a task that does not end in its place. Called in the watching thread."""
        seconds = time.monotonic() - watch.began
        if isinstance(watch.held, HeldJob):
            self.inbox.put(give_up_job(watch.held, seconds, watch.where()))
        else:
            self.inbox.put(give_up(watch.held, seconds, watch.where()))

    # -- one round

    def tick(self) -> float:
        """Record, claim and start what can be now; return the seconds until the next look is due."""
        self._flush()
        self.showing.round()
        now = time.monotonic()
        if self._finished_enough():
            self.stopping = True
            return 0.0
        if self.trouble.until > now:
            return self.trouble.until - now
        if self.dispatcher.waiting and self.slots.stalled():
            self.dispatcher.release_waiting()
        self.dispatcher.go_on()
        try:
            for place in self.agenda.turns(now) if self._room() > 0 else ():
                room = self._room()
                if room <= 0:
                    break
                if not self._claim(place, room):
                    return max(0.0, self.trouble.until - time.monotonic())
            self._look(now)
        except BrokerError as error:
            self.trouble.redis_failed(error)
            return max(0.0, self.trouble.until - time.monotonic())
        if self.options.burst and self._nothing_left(now):
            self.stopping = True
            return 0.0
        return self._until_next()

    def _claim(self, place: Place, room: int) -> bool:
        """Claim points and jobs there; where both are due, each has half of the room, and the first turn by turns."""
        if place in self._jobs_first or self.job_claims.owes(place):
            self._jobs_first.discard(place)
            if not self.job_claims.claim(place, max(1, room // 2)):
                return False
            room = min(room, self._room())
            return room <= 0 or self.claims.claim(place, room)
        if not self.claims.claim(place, room):
            return False
        if self.claims.jobs_due:
            room = min(room, self._room())
            if room > 0:
                return self.job_claims.claim(place, room)
            self._jobs_first.add(place)
        return True

    def _room(self) -> int:
        if self.recorder.locked.full or self.job_recorder.locked.full:
            return 0
        room = min(self.dispatcher.capacity(), self.config.batch_size)
        if self.options.max_runs is not None:
            room = min(room, self.options.max_runs - self.runs - len(self.keeper))
        return room

    def _until_next(self) -> float:
        now = time.monotonic()
        again = min(self.recorder.again, self.job_recorder.again, self.showing.again)
        return min(self._until_claims(now), max(0.0, max(again, self.trouble.until) - now))

    def _until_claims(self, now: float) -> float:
        cap = self.config.idle_cap_seconds
        if self.dispatcher.isolation.waiting:  # the end of what runs wakes us
            return min(cap, self.dispatcher.isolation.seconds_left())
        if self._room() <= 0:  # the end of a task wakes us
            return cap if self.dispatcher.waiting == 0 else WAITING_SECONDS
        return self.agenda.until(now)

    def _finished_enough(self) -> bool:
        return self.options.max_runs is not None and self.runs >= self.options.max_runs

    def _nothing_left(self, now: float) -> bool:
        answered = self.claims.answered and self.job_claims.answered
        done = len(self.keeper) == 0 and self._recorded and answered
        return done and self.agenda.nothing_now(now)

    def _flush(self) -> None:
        if self._recorded or self.trouble.until > time.monotonic():
            return
        for recorder in (self.recorder, self.job_recorder):  # neither waits for what the other cannot write
            writes = bool(recorder.unrecorded)
            try:
                recorder.flush()
                if writes:
                    self.trouble.database_worked(wrote=True)
            except Error as error:
                self.trouble.database_failed(error, writing=writes)
            except BrokerError as error:
                self.trouble.redis_failed(error)

    def _look(self, now: float) -> None:
        """Ask for heads that nobody told of; what is empty may have been flushed."""
        empty = self.agenda.look(now)
        if empty is None:
            return
        if empty and None in self.broker.epochs(empty):
            self.upkeep.rebuild_soon()
        if self.trouble.redis_worked():
            self.upkeep.redis_is_back()

    # -- the end

    def drain(self) -> int:
        """Release what did not start, finish and record what runs, within the grace. Returns the exit status."""
        if self.leaving and not self.stopping:
            logger.warning("This process is to be replaced by a fresh one: %s.", self.leaving)
            self._tell(status.LEAVING)
        self.dispatcher.release_all()
        end = self.grace_ends_at = time.monotonic() + self.config.drain_seconds
        if len(self.keeper) and not self.aborted:
            logger.info("Stopping: %d still running, up to %g s.", self.slots.running, self.config.drain_seconds)
        while (len(self.keeper) or not self._recorded) and not self.aborted and time.monotonic() < end:
            self._wait(0.1)
            self._flush()
            self.showing.round()
        left = len(self.keeper)
        if left:
            logger.warning("Stopped with %d unfinished; they come due again when their leases end.", left)
        self.slots.stop(0.0 if left else SLOTS_SECONDS)
        self.upkeep.farewell()
        logger.info("Stopped after %d runs.", self.runs)
        if self.leaving and not self.stopping:
            return status.RECYCLE
        return status.UNFINISHED if left else status.OK
