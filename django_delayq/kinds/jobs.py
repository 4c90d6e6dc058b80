"""Jobs as the worker works on them: `Kind`, carried out by the scripts on jobs, and by the ledger for durable ones."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .. import conf
from ..broker import JobBroker, Shard
from ..compat import AnyTask, task_backends
from ..counters import Counts
from ..exceptions import ForgedJob, JobLost, UnknownTask
from ..grouping import grouped
from ..jobs import Call, Options, Retries, decode
from ..jobs.aliases import keepers_of
from ..jobs.task import retries_of
from ..models import Job
from ..registry import get_task
from . import held_job, job_rows
from .base import MOVING_MS, Claimed, Due, Verdicts
from .held_job import HeldJob, JobCalls
from .timeouts import Timeouts
from .unverified import Unverified

logger = logging.getLogger("django_delayq.worker")

#: Where no backend is known of what is settled, none of the dead jobs is forgotten for it.
FOR_EVER = 10**12


class Jobs(JobCalls):
    """See `Kind`."""

    name = "jobs"
    tables = (Job,)

    def __init__(self, jobs: JobBroker, timeouts: Timeouts) -> None:
        self.jobs, self.timeouts, self.worker, self.counted = jobs, timeouts, jobs.broker.worker, Counts()
        self.untold: deque[Callable[[], None]] = deque()
        self._lease_seconds = jobs.broker.config.lease_seconds
        self._lease_ms = int(self._lease_seconds * 1000)
        self._unverified = Unverified()
        self._backends: dict[str, Any] = {}
        self._retries: dict[tuple[str, str], Retries] = {}

    # -- from Redis

    def claim(
        self, shard: Shard, limit: int, request: int, deadline: float, most: int | None = None
    ) -> Claimed[HeldJob]:
        """See `Kind.claim`."""
        claim = self.jobs.claim(shard, limit=limit, lease_ms=self._lease_ms, request=request, most=most)
        entries = [HeldJob(self, shard, entry.member, claim.holder, deadline, entry=entry) for entry in claim.entries]
        return Claimed(claim.now_ms, claim.head_ms, claim.epoch, entries)

    def renew(self, shard: Shard, batch: Sequence[HeldJob]) -> set[str]:
        """See `Kind.renew`."""
        return self._renew(shard, batch)

    def _renew(self, shard: Shard, batch: Sequence[HeldJob], *, start: bool = False) -> set[str]:
        return self.jobs.renew(shard, [(job.member, job.lease) for job in batch], lease_ms=self._lease_ms, start=start)

    # -- before they run

    def judge(self, batch: Sequence[HeldJob]) -> Verdicts[HeldJob]:
        """See `Kind.judge`. Jobs of Redis alone cost no query."""
        verdicts: Verdicts[HeldJob] = Verdicts()
        going: list[HeldJob] = []
        durable: list[HeldJob] = []
        unverified = []
        for job in batch:
            try:
                self._read(job)
            except ForgedJob as error:
                unverified.append((job, error))
            except UnknownTask as error:
                logger.warning("%s is released for other workers: %s", job.title, error)
                verdicts.unknown.append(job)
            else:
                if self.jobs.shard_of(job.member, job.shard.queue) != job.shard:
                    verdicts.back.append((job, MOVING_MS))
                else:
                    (durable if job.stored and job.read.durable else going).append(job)
        if unverified:
            self._unverified.judge(unverified, verdicts)
        if durable:
            going += job_rows.admit(durable, verdicts)
        for job in going:
            job.take_overs = job.entry.reclaims + 1 if job.entry.lapsed else 0
            (verdicts.suspects if job.entry.lapsed else verdicts.start).append(job)
        return verdicts

    def _read(self, job: HeldJob) -> None:
        """Read a job's text and find its task.

        Raises:
            ForgedJob: Its signature is not known here, or for another queue.
            UnknownTask: Its task, its backend or the version of its text is not.
        """
        job.line, job.call, job.state = decode(job.shard.queue, job.member, job.entry.payload)
        job.backend = self._backend_of(job.call.backend)
        task = get_task(job.call.task)
        job.retries = self._retries_of(job.call, task, job.backend)
        job.task, job.limit = held_job.task_of(task, job), job.retries.timeout or None
        job.stored = job.call.durable or job.backend.settings.results == "database"

    def _retries_of(self, call: Call, task: AnyTask, backend: Any) -> Retries:
        """Return what the call says, else the task's decorator, else the backend's options."""
        known = self._retries.get((call.backend, call.task))
        if known is None:
            known = retries_of(task).over(backend.settings.retries_of(task.module_path))
            self._retries[call.backend, call.task] = known
        if call.max_attempts is None and call.backoff is None and call.timeout is None:
            return known
        return Retries(call.max_attempts, call.backoff, call.timeout).over(known)

    def _backend_of(self, alias: str) -> Any:
        if alias not in self._backends:
            self._backends[alias] = _backend_of(alias)
        return self._backends[alias]

    def begin(self, batch: Sequence[HeldJob]) -> Verdicts[HeldJob]:
        """See `Kind.begin` and `starting.py`, Note [Take-over]."""
        verdicts: Verdicts[HeldJob] = Verdicts()
        starting = []
        for job in batch:
            if job.take_overs > conf.get_config().max_reclaims:
                error = JobLost(f"The workers that executed it died, {job.entry.reclaims} times in a row.")
                held_job.fail(job, error, final=True)
                verdicts.decided.append(job)
            else:
                starting.append(job)
        kept = []
        for shard, jobs in grouped(starting, lambda job: job.shard).items():
            deadline = time.monotonic() + self._lease_seconds
            lost = self._renew(shard, jobs, start=True)
            for job in jobs:
                if job.member in lost:
                    verdicts.lost.append(job)
                else:
                    job.deadline, job.begun = deadline, True
                    kept.append(job)
        if any(job.stored for job in kept):
            kept = job_rows.begin(kept, verdicts)
        verdicts.start += kept
        return verdicts

    def show(self, batch: Sequence[HeldJob]) -> list[HeldJob] | None:
        """See `Kind.show`."""
        return job_rows.show(batch)

    # -- after they ran

    def record(self, batch: Sequence[HeldJob]) -> Verdicts[HeldJob]:
        """See `Kind.record`."""
        return job_rows.record(batch)

    def give_back(self, batch: Sequence[HeldJob], delay_ms: int) -> None:
        """See `Kind.give_back`."""
        for job in batch:
            job.release(delay_ms)
        job_rows.undo(batch)

    def settle(self, shard: Shard, batch: Sequence[HeldJob]) -> list[Due]:
        """See `Kind.settle`."""
        dead_seconds, dead_most = _kept_dead(shard.queue, batch)
        settlements = [job.settled for job in batch]
        settled = self.jobs.settle(shard, settlements, dead_ms=int(dead_seconds * 1000), dead_most=dead_most)
        for job, applied in zip(batch, settled.replies, strict=True):
            if not applied and job.settled.what != "release":
                logger.warning("%s was finished by another worker.", job.title)
            if applied or job.row is not None:  # what has a row was won there
                _count(job, self.counted)
        return [Due(shard, settled.head_ms, settled.now_ms)]


def _count(job: HeldJob, counted: Counts) -> None:
    """Count what has become of a job; what was not executed has an outcome only where it was lost.

    A job waits once: until its first attempt.
    """
    call, state = job.call, job.state
    if call is None or not (job.executed or state.status == "FAILED"):
        return
    key = "jobs", job.shard.queue, call.task
    if not job.executed:
        counted.add(key, "lost")
        return
    counted.add(key, OUTCOMES.get(state.status, "retried"), lag=job.lag, ran=job.seconds)


#: Of a job that has ended, by its state's status.
OUTCOMES = {"SUCCESSFUL": "succeeded", "FAILED": "failed"}


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


def _kept_dead(queue: str, batch: Sequence[HeldJob]) -> tuple[float, int]:
    """Return for how many seconds dead jobs are kept, and how many.

    Note [One list of dead jobs]
    The dead jobs of a queue are in one list, whatever their alias, so that they can be shown in the order of their
    deaths. Where aliases say different things of how long and how many are kept, the largest counts for all: what one
    of them wants to keep another one's failure must not delete. A system check tells of it.
    """
    died = [job.backend for job in batch if job.settled.what == "dead"]
    own: list[Options] = [backend.settings for backend in died if backend is not None]
    if not own:
        return FOR_EVER, FOR_EVER
    options = [*own, *keepers_of(queue).values()]
    return max(item.dead_ttl for item in options), max(item.dead_max for item in options)
