"""Jobs in memory: what `JobBroker` keeps in Redis, by the same rules as its scripts, for one process.

For processes that send Redis nothing. Executes nothing: that is what `django_delayq.testing` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import conf
from ..broker import Broker, JobBroker, JobEntry, JobSettlement, JobView, NewJob, Place
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

    def place_of(self, member: str, queue: str) -> Place:
        """Return the one shard of the queue."""
        return Place(queue, 0)

    def now_ms(self) -> int:
        """Return this process' clock."""
        return to_ms(utcnow())


class MemoryJobs(JobBroker):
    """One shard per queue; see `NoRedis`."""

    def __init__(self, broker: NoRedis) -> None:
        super().__init__(broker)
        self.jobs: dict[tuple[Place, str], StandingJob] = {}
        self.ended: dict[tuple[Place, str], tuple[str, int]] = {}
        #: Every job that was ever added.
        self.added: list[tuple[Place, NewJob]] = []
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

    def place_of(self, member: str, queue: str, shards: object = None) -> Place:
        """Return the one shard of the queue."""
        return Place(queue, 0)

    # -- whoever wants something done

    def add(self, place: Place, job: NewJob) -> str:
        """Do as job_enqueue.lua does: return '' or the member that stands for it."""
        standing = self._waiting_with_key(place, job.unique)
        if standing:
            return standing
        self.jobs[place, job.member] = made = StandingJob(job.payload, 0, job.priority, job.unique, 0)
        self._await(made, job.wake_ms)
        self.added.append((place, job))
        return ""

    def _waiting_with_key(self, place: Place, unique: str) -> str:
        if unique:
            for (where, member), job in list(self.jobs.items()):
                if where == place and job.unique == unique and not job.holder and job.died_ms is None:
                    return member
        return ""

    def _await(self, job: StandingJob, wake_ms: int) -> None:
        self._number += 1
        job.wake_ms, job.number, job.holder = max(wake_ms, self.broker.now_ms()), self._number, ""

    def change(self, place: Place, member: str, what: str, ms: int = 0, value: str = "", *, unique: str = "") -> str:
        """Do as job_change.lua does."""
        job = self.jobs.get((place, member))
        if job is None:
            return "GONE"
        if job.died_ms is not None:
            return self._change_dead(place, member, job, what, ms, value)
        if what in ("revive", "bury"):
            return "WAITING"
        if job.holder:
            return "HELD"
        if what == "move":
            self._await(job, ms)
            return "OK"
        del self.jobs[place, member]
        if what == "cancel" and value:
            self.ended[place, member] = (value, self.broker.now_ms() + ms)
        return "OK"

    def _change_dead(self, place: Place, member: str, job: StandingJob, what: str, ms: int, value: str) -> str:
        if what == "revive":
            if self._waiting_with_key(place, job.unique):
                return "TAKEN"
            job.payload, job.priority, job.died_ms = value, ms, None
            self._await(job, self.broker.now_ms())
        elif what == "bury":
            del self.jobs[place, member]
            self.ended.pop((place, member), None)
        else:
            return "DEAD"
        return "OK"

    def views(self, place: Place, members: Sequence[str]) -> list[JobView]:
        """Return what stands of these."""
        return [self._view(place, member) for member in members]

    def _view(self, place: Place, member: str) -> JobView:
        text, until_ms = self.ended.get((place, member), ("", 0))
        result = text if until_ms > self.broker.now_ms() else ""
        job = self.jobs.get((place, member))
        if job is None:
            return JobView("", "", None, None, result)
        waits = job.wake_ms if job.wake_ms > self.broker.now_ms() and not job.holder and job.died_ms is None else None
        return JobView(job.payload, job.holder, waits, job.died_ms, result)

    # -- what a worker does

    def head(self) -> tuple[Place, str] | None:
        """Return whose turn comes first: of what is due the most urgent, else what comes due first."""
        free = {key: job for key, job in self.jobs.items() if not job.holder and job.died_ms is None}
        now_ms = self.broker.now_ms()
        due = {key: job for key, job in free.items() if job.wake_ms <= now_ms}
        if due:
            return min(due, key=lambda key: (due[key].wake_ms - due[key].priority * PATIENCE_MS, due[key].number))
        # What comes due at the same time goes by its priority too.
        return min(free, key=lambda key: (free[key].wake_ms, -free[key].priority, free[key].number), default=None)

    def lease(self, place: Place, member: str, holder: str) -> JobEntry:
        """Lease a job."""
        job = self.jobs[place, member]
        job.holder = holder
        return JobEntry(member, job.payload, lapsed=False, reclaims=0)

    def renew(self, place: Place, leases: Sequence[tuple[str, str]], *, lease_ms: int, start: bool = False) -> set[str]:
        """Return those that are no longer the caller's."""
        return {member for member, holder in leases if self._held(place, member, holder) is None}

    def settle(self, place: Place, settlements: Sequence[JobSettlement], *, dead_ms: int, dead_most: int) -> list[bool]:
        """Do as job_settle.lua does."""
        replies = [self._settle(place, item) for item in settlements]
        dead = sorted(
            (job.died_ms, key) for key, job in self.jobs.items() if key[0] == place and job.died_ms is not None
        )
        left = len(dead)
        for died_ms, key in dead:
            if left > dead_most or died_ms <= self.broker.now_ms() - dead_ms:
                del self.jobs[key]
                left -= 1
        return replies

    def _settle(self, place: Place, item: JobSettlement) -> bool:
        job = self._held(place, item.member, item.holder)
        if job is None:
            return False
        if item.what == "done":
            del self.jobs[place, item.member]
            if item.text:
                self.ended[place, item.member] = (item.text, self.broker.now_ms() + item.ms)
        elif item.what == "dead":
            job.payload, job.holder, job.died_ms = item.text, "", self.broker.now_ms()
        else:
            if item.what == "retry":
                job.payload = item.text
            self._await(job, self.broker.now_ms() + item.ms)
        return True

    def _held(self, place: Place, member: str, holder: str) -> StandingJob | None:
        job = self.jobs.get((place, member))
        return job if job is not None and job.holder == holder else None
