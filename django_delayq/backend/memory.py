"""Jobs in memory: what `JobBroker` keeps in Redis, by the same rules as its scripts, for one process.

For processes that send Redis nothing. Executes nothing: that is what `django_delayq.testing` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import conf
from ..broker import Broker, JobBroker, JobClaim, JobEntry, JobSettlement, JobView, NewJob, Settled, Shard
from ..fields import utcnow
from ..timing import to_ms

#: One step of priority is worth so many ms of waiting: `broker/lua/_jobs.lua`, Note [Priorities].
PATIENCE_MS = 60_000


@dataclass(slots=True)
class StandingJob:
    """One job. `holder` is empty while nobody has it, `died_ms` set once it is dead, `number` grows with each wait."""

    payload: str
    wake_ms: int
    priority: int
    unique: str
    number: int
    holder: str = ""
    died_ms: int | None = None


class NoRedis(Broker):
    """Stands where a broker is asked for. One shard per queue; whatever else would ask Redis is refused."""

    def __init__(self, worker: str = "-") -> None:
        super().__init__(timeout_seconds=0, worker=worker, client=object())

    @property
    def client(self) -> Any:
        """There is none."""
        raise NotImplementedError(f"This asks Redis, and nothing is sent there. {conf.why_no_redis()}.")

    def shard_of(self, member: str, queue: str) -> Shard:
        """Return the one shard of the queue."""
        return Shard(queue, 0)

    def now_ms(self) -> int:
        """Return this process' clock."""
        return to_ms(utcnow())


class MemoryJobs(JobBroker):
    """One shard per queue; see `NoRedis`."""

    def __init__(self, broker: NoRedis) -> None:
        super().__init__(broker)
        self.jobs: dict[tuple[Shard, str], StandingJob] = {}
        self.ended: dict[tuple[Shard, str], tuple[str, int]] = {}
        #: Every job that was ever added.
        self.added: list[tuple[Shard, NewJob]] = []
        self._number = 0

    def adopt(self, other: "MemoryJobs") -> None:
        """Take over what another memory holds: what is due there is due here, whatever the time is here."""
        now_ms = other.broker.now_ms()
        for key, job in other.jobs.items():
            if job.wake_ms <= now_ms:
                job.wake_ms = 0
            self.jobs[key] = job
        self.ended.update(other.ended)
        self.added += other.added
        self._number = max(self._number, other._number)

    def shard_of(self, member: str, queue: str, counts: object = None) -> Shard:
        """Return the one shard of the queue."""
        return Shard(queue, 0)

    # -- whoever wants something done

    def add(self, shard: Shard, job: NewJob) -> str:
        """Do as job_enqueue.lua does: return '' or the member that stands for it."""
        standing = self._waiting_with_key(shard, job.unique)
        if standing:
            return standing
        self.jobs[shard, job.member] = made = StandingJob(job.payload, 0, job.priority, job.unique, 0)
        self._await(made, job.wake_ms)
        self.added.append((shard, job))
        return ""

    def _waiting_with_key(self, shard: Shard, unique: str) -> str:
        if unique:
            for (where, member), job in list(self.jobs.items()):
                if where == shard and job.unique == unique and not job.holder and job.died_ms is None:
                    return member
        return ""

    def _await(self, job: StandingJob, wake_ms: int) -> None:
        self._number += 1
        job.wake_ms, job.number, job.holder = max(wake_ms, self.broker.now_ms()), self._number, ""

    def change(self, shard: Shard, member: str, what: str, ms: int = 0, value: str = "", *, unique: str = "") -> str:
        """Do as job_change.lua does."""
        job = self.jobs.get((shard, member))
        if job is None:
            return "GONE"
        if job.died_ms is not None:
            return self._change_dead(shard, member, job, what, ms, value)
        if what in ("revive", "bury"):
            return "WAITING"
        if job.holder:
            return "HELD"
        if what == "move":
            self._await(job, ms)
            return "OK"
        del self.jobs[shard, member]
        if what == "cancel" and value:
            self.ended[shard, member] = (value, self.broker.now_ms() + ms)
        return "OK"

    def _change_dead(self, shard: Shard, member: str, job: StandingJob, what: str, ms: int, value: str) -> str:
        if what == "revive":
            if self._waiting_with_key(shard, job.unique):
                return "TAKEN"
            job.payload, job.priority, job.died_ms = value, ms, None
            self._await(job, self.broker.now_ms())
        elif what == "bury":
            del self.jobs[shard, member]
            self.ended.pop((shard, member), None)
        else:
            return "DEAD"
        return "OK"

    def views(self, shard: Shard, members: Sequence[str]) -> list[JobView]:
        """Return what stands of these."""
        return [self._view(shard, member) for member in members]

    def _view(self, shard: Shard, member: str) -> JobView:
        text, until_ms = self.ended.get((shard, member), ("", 0))
        result = text if until_ms > self.broker.now_ms() else ""
        job = self.jobs.get((shard, member))
        if job is None:
            return JobView("", "", None, None, result)
        waits = job.wake_ms if job.wake_ms > self.broker.now_ms() and not job.holder and job.died_ms is None else None
        return JobView(job.payload, job.holder, waits, job.died_ms, result)

    # -- what a worker does

    def head(self) -> tuple[Shard, str] | None:
        """Return whose turn comes first: of what is due the most urgent, else what comes due first."""
        heads = [(shard, line[0]) for shard in {shard for shard, _ in self.jobs} if (line := self._line(shard))]
        return min(heads, key=lambda key: self._turn(self.jobs[key]), default=None)

    def _line(self, shard: Shard) -> list[str]:
        """Return the jobs of a shard that nobody has, in the order of their turns."""
        free = {
            member: job
            for (where, member), job in self.jobs.items()
            if where == shard and not job.holder and job.died_ms is None
        }
        return sorted(free, key=lambda member: self._turn(free[member]))

    def _turn(self, job: StandingJob) -> tuple[bool, int, int, int]:
        if job.wake_ms <= self.broker.now_ms():
            return False, job.wake_ms - job.priority * PATIENCE_MS, 0, job.number
        return True, job.wake_ms, -job.priority, job.number  # what comes due at the same time goes by its priority too

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int) -> JobClaim:
        """Lease the first `limit` jobs that nobody has; see `JobBroker.claim`. Whether they are due is the caller's."""
        self._number += 1
        holder, entries = f"{self.broker.now_ms() * 1024}.{self._number} {self.broker.worker}", []
        for member in self._line(shard)[:limit]:
            job = self.jobs[shard, member]
            job.holder = holder
            entries.append(JobEntry(member, job.payload, lapsed=False, reclaims=0))
        return JobClaim(self.broker.now_ms(), None, "memory", holder, tuple(entries))

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int, start: bool = False) -> set[str]:
        """Return those that are no longer the caller's."""
        return {member for member, holder in leases if self._held(shard, member, holder) is None}

    def settle(self, shard: Shard, settlements: Sequence[JobSettlement], *, dead_ms: int, dead_most: int) -> Settled:
        """Do as job_settle.lua does."""
        replies = [int(self._settle(shard, item)) for item in settlements]
        dead = sorted(
            (job.died_ms, key) for key, job in self.jobs.items() if key[0] == shard and job.died_ms is not None
        )
        left = len(dead)
        for died_ms, key in dead:
            if left > dead_most or died_ms <= self.broker.now_ms() - dead_ms:
                del self.jobs[key]
                left -= 1
        return Settled(self.broker.now_ms(), None, replies)

    def _settle(self, shard: Shard, item: JobSettlement) -> bool:
        job = self._held(shard, item.member, item.holder)
        if job is None:
            return False
        if item.what == "done":
            del self.jobs[shard, item.member]
            if item.text:
                self.ended[shard, item.member] = (item.text, self.broker.now_ms() + item.ms)
        elif item.what == "dead":
            job.payload, job.holder, job.died_ms = item.text, "", self.broker.now_ms()
        else:
            if item.what == "retry":
                job.payload = item.text
            self._await(job, self.broker.now_ms() + item.ms)
        return True

    def _held(self, shard: Shard, member: str, holder: str) -> StandingJob | None:
        job = self.jobs.get((shard, member))
        return job if job is not None and job.holder == holder else None
