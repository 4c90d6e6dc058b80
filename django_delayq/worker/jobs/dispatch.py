"""From claimed jobs to slots, recorder or back to Redis."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ... import conf
from ...broker import JobBroker, JobSettlement, Place
from ...compat import AnyTask, task_backends
from ...exceptions import BrokerError, ForgedJob, JobLost, UnknownTask
from ...jobs import Call, Retries, decode
from ...jobs.task import retries_of
from ...registry import get_task
from ..leases import LeaseKeeper
from ..slots import Slots
from ..trouble import Trouble
from .entry import FinishedJob, HeldJob
from .execution import failed, task_of
from .recorder import JobRecorder
from .rows import JobRows
from .strangers import Strangers

logger = logging.getLogger("django_delayq.worker")

#: What is about to move to another shard comes back after so long, unleased meanwhile, so that it can be moved.
MOVING_MS = 1_000


class JobDispatcher:
    """Used by the loop's thread only."""

    def __init__(
        self,
        jobs: JobBroker,
        keeper: LeaseKeeper,
        recorder: JobRecorder,
        slots: Slots,
        trouble: Trouble,
        *,
        due_in_ms: Callable[[Place, int], None],
        refuse: Callable[[Sequence[HeldJob]], None],
        suspect: Callable[[HeldJob, AnyTask], None],
        isolated: Callable[[], bool],
    ) -> None:
        """`refuse` hands back what this code does not know, `suspect` takes what somebody may have executed before,
        `isolated` says whether nothing may be started now.
        """
        self.jobs, self.keeper, self.recorder, self.slots, self.trouble = jobs, keeper, recorder, slots, trouble
        self._backends: dict[str, Any] = {}
        self._retries: dict[tuple[str, str], Retries] = {}
        self._due_in_ms, self._refuse, self._suspect, self._isolated = due_in_ms, refuse, suspect, isolated
        self.rows = JobRows(trouble, drop=self._drop, release=self.release)
        self._strangers = Strangers(self.rows, drop=self._drop, release=self.release, end=recorder.add)

    def dispatch(self, held: Sequence[HeldJob]) -> None:
        """Read claimed jobs and set each on its way."""
        ready, durable, strange, unknown = [], [], [], []
        for job in held:
            try:
                task = self._read(job)
            except ForgedJob as error:
                strange.append((job, error))
                continue
            except UnknownTask as error:
                logger.warning("%s is released for other workers: %s", job.title, error)
                unknown.append(job)
                continue
            if task is None:
                continue
            if job.stored and job.call is not None and job.call.durable:
                durable.append((job, task))
            elif job.entry.lapsed:
                self._suspect(job, task)
            else:
                ready.append((job, task))
        if strange:
            self._strangers.take(strange)
        if unknown:
            self._refuse(unknown)
        for job, task in self.rows.admit(durable) if durable else ():
            if job.entry.lapsed:
                self._suspect(job, task)
            else:
                ready.append((job, task))
        if self._isolated():
            self.release([job for job, _ in ready], 0)
            return
        self.slots.submit_many(ready)

    def _read(self, job: HeldJob) -> AnyTask | None:
        """Read a job's text and find its task; None where it is set on another way.

        Raises:
            ForgedJob: Its signature is not known here, or for another queue.
            UnknownTask: Its task, its backend or the version of its text is not.
        """
        job.line, job.call, job.state = decode(job.place.queue, job.member, job.entry.payload)
        if self.jobs.place_of(job.member, job.place.queue) != job.place:
            self.release([job], MOVING_MS)
            return None
        job.backend = self._backend_of(job.call.backend)
        task = get_task(job.call.task)
        job.retries = self._retries_of(job.call, task, job.backend)
        job.task = task_of(task, job)
        job.stored = job.call.durable or job.backend.settings.results == "database"
        return task

    def _drop(self, job: HeldJob) -> None:
        """Forget a job that is not to be executed."""
        self.recorder.add(FinishedJob(job, 0.0, JobSettlement(job.member, job.fence, "done")))

    def _retries_of(self, call: Call, task: AnyTask, backend: Any) -> Retries:
        """Return what the call says, else the task's decorator, else the backend's options."""
        known = self._retries.get((call.backend, call.task))
        if known is None:
            known = retries_of(task).over(backend.settings.retries_of(call.task))
            self._retries[call.backend, call.task] = known
        if call.max_attempts is None and call.backoff is None and call.timeout is None:
            return known
        return Retries(call.max_attempts, call.backoff, call.timeout).over(known)

    def _backend_of(self, alias: str) -> Any:
        if alias not in self._backends:
            self._backends[alias] = _backend_of(alias)
        return self._backends[alias]

    # -- suspects: see `worker/starting.py`, Note [Take-over]

    def is_poison(self, job: HeldJob) -> bool:
        """Say whether the job has killed its workers too often to be executed once more (rule R6)."""
        return job.entry.reclaims + 1 > conf.get_config().max_reclaims

    def start(self, place: Place, suspects: Sequence[tuple[HeldJob, AnyTask]]) -> None:
        """Prove and count jobs of one place and submit them; what is poison is dead.

        Raises:
            BrokerError: None of them was submitted, and nothing is known of their leases.
            DatabaseError: None of them was submitted.
        """
        starting = []
        for job, task in suspects:
            if self.is_poison(job):
                error = JobLost(f"The workers that executed it died, {job.entry.reclaims} times in a row.")
                self.recorder.add(failed(job, error, 0.0, final=True))
            else:
                starting.append((job, task))
        tasks = dict(starting)
        kept = self.keeper.prove_jobs(place, list(tasks), start=True)
        self.keeper.discard(set(tasks) - set(kept))
        for job in kept:
            job.begun = True
        if any(job.stored for job in kept):
            kept = self.rows.begin(kept)
        for job in kept:
            self.slots.submit(job, tasks[job])

    # -- handing back

    def release(self, held: Iterable[HeldJob], delay_ms: int) -> None:
        """Hand jobs back unstarted. Where Redis does not answer, their leases end by themselves."""
        places: dict[Place, list[HeldJob]] = {}
        for job in held:
            places.setdefault(job.place, []).append(job)
        written = [job for group in places.values() for job in group if job.before is not None]
        if written:
            self.rows.undo(written)
        try:
            for place, group in places.items():
                self.keeper.discard(group)
                self.jobs.settle(place, [job.release(delay_ms) for job in group], dead_ms=0, dead_most=0)
                self._due_in_ms(place, delay_ms)
        except BrokerError as error:
            self.keeper.discard(job for group in places.values() for job in group)
            self.trouble.redis_failed(error)


def _backend_of(alias: str) -> Any:
    """Return the backend of an alias.

    Raises:
        UnknownTask: TASKS has no such alias here, or it is another backend.
    """
    try:
        backend = task_backends[alias]
    except Exception as error:
        raise UnknownTask(f"TASKS has no usable alias {alias!r} here: {error}") from error
    if not hasattr(backend, "settings") or not hasattr(backend, "result_ms"):
        raise UnknownTask(f"TASKS[{alias!r}] is another backend here.")
    return backend
