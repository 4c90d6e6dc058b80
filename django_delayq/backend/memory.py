"""What stands in Redis elsewhere, in memory, by the same rules as the scripts, for one process. Executes nothing.

The tests of the scripts hold the two against each other. Not here: lost replies, and leases that end.

Note [Empty at the start of a test]
Jobs that stay in memory are those of one test, as the mails in `mail.outbox` are. pytest names the test that it runs in
the environment. Nothing else does: there, each of Django's test cases begins with a new list of mails.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, Generic, TypeVar

from .. import conf
from ..broker import Broker, Claim, JobBroker, JobEntry, JobSettlement, JobView, NewJob, Settled, Shard
from ..broker.job_pages import PATIENCE_MS
from ..fields import utcnow
from ..timing import to_ms

#: So many jobs are kept; then all are forgotten, for without a test nothing else would empty it.
MOST_IN_MEMORY = 10_000


class NoRedis(Broker):
    """Stands where a broker is asked for. One shard per queue, no layout; whatever else would ask Redis is refused."""

    def __init__(self, worker: str = "-") -> None:
        super().__init__(timeout_seconds=0, worker=worker, client=object())

    @property
    def client(self) -> Any:
        raise NotImplementedError(f"This asks Redis, and nothing is sent there. {conf.why_no_redis()}.")

    def shard_of(self, member: str, queue: str) -> Shard:
        return Shard(queue, 0)

    def now_ms(self) -> int:
        return to_ms(utcnow())

    def layout(self) -> str | None:
        return None


@dataclass(slots=True, kw_only=True)
class Standing:
    """A member. It waits until `wake_ms`, which is the end of its lease while it has a `holder`."""

    wake_ms: int
    holder: str = ""


S = TypeVar("S", bound=Standing)
Key = tuple[Shard, str]


class Memory(Generic[S]):
    """Members of one kind, and their leases."""

    def __init__(self, broker: NoRedis) -> None:
        self.broker: Any = broker
        self.members: dict[Key, S] = {}
        self._fence = 0

    def turn(self, item: S) -> tuple[int, ...]:
        """Return what those that nobody has are sorted by."""
        raise NotImplementedError

    def free(self) -> list[Key]:
        """Return what nobody has, in the order of their turns; of equal ones the one that came first."""
        found = [key for key, item in self.members.items() if not item.holder]
        return sorted(found, key=lambda key: self.turn(self.members[key]))

    def first(self) -> tuple[int, Shard] | None:
        """Return when the first one of those comes due, and where."""
        return next(((self.members[key].wake_ms, key[0]) for key in self.free()), None)

    def lease(self, shard: Shard, limit: int, lease_ms: int) -> tuple[str, list[tuple[str, S]]]:
        """Lease up to `limit` members that are due; return their holder, and them."""
        now_ms = self.broker.now_ms()
        self._fence = max(self._fence + 1, now_ms * 1024)
        holder = f"{self._fence}.memory {self.broker.worker}"
        due = [key for key in self.free() if key[0] == shard and self.members[key].wake_ms <= now_ms][:limit]
        for key in due:
            self.members[key].holder, self.members[key].wake_ms = holder, now_ms + lease_ms
        return holder, [(key[1], self.members[key]) for key in due]

    def held(self, key: Key, holder: str) -> S | None:
        item = self.members.get(key)
        return item if item is not None and item.holder and item.holder == holder else None

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int, start: bool = False) -> set[str]:
        lost = set()
        for member, holder in leases:
            if (item := self.held((shard, member), holder)) is None:
                lost.add(member)
            else:
                item.wake_ms = self.broker.now_ms() + lease_ms
        return lost


@dataclass(slots=True, kw_only=True)
class StandingJob(Standing):
    """One job. `died_ms` is set once it is dead."""

    payload: str
    priority: int
    unique: str
    died_ms: int | None = None


class MemoryJobs(Memory[StandingJob], JobBroker):
    """The jobs of all queues. Safe to share between threads that enqueue."""

    def __init__(self, broker: NoRedis) -> None:
        super().__init__(broker)
        #: The results, each with the ms of its end.
        self.ended: dict[Key, tuple[str, int]] = {}
        #: Who waits with a unique key.
        self.waiting_keys: dict[Key, str] = {}
        #: Every job that was ever added.
        self.added: list[tuple[Shard, NewJob]] = []
        self._lock = RLock()

    def shard_of(self, member: str, queue: str, counts: object = None) -> Shard:
        return Shard(queue, 0)

    # -- whoever wants something done

    def enqueue_each(
        self, parts: Sequence[tuple[Shard, Sequence[NewJob]]], epochs: Mapping[Shard, str], *, again: bool
    ) -> list[tuple[str, list[str] | None]]:
        """See `JobBroker.enqueue_each`; there are no epochs."""
        with self._lock:
            return [("", [self._add(shard, job) for job in jobs]) for shard, jobs in parts]

    def _add(self, shard: Shard, job: NewJob) -> str:
        key = shard, job.member
        if key in self.members or (shard, job.unique) in self.waiting_keys:
            return self.waiting_keys.get((shard, job.unique), job.member)
        self.members[key] = StandingJob(wake_ms=0, payload=job.payload, priority=job.priority, unique=job.unique)
        self._await(key, job.wake_ms)
        self.added.append((shard, job))
        return ""

    def _await(self, key: Key, wake_ms: int) -> None:
        self.members[key] = job = self.members.pop(key)  # behind all that wait already
        job.wake_ms, job.holder = max(wake_ms, self.broker.now_ms()), ""
        if job.unique:
            self.waiting_keys.setdefault((key[0], job.unique), key[1])

    def _give_up_key(self, key: Key) -> None:
        unique = key[0], self.members[key].unique
        if self.waiting_keys.get(unique) == key[1]:
            del self.waiting_keys[unique]

    def _forget(self, key: Key, result: str = "", keep_ms: int = 0) -> None:
        self._give_up_key(key)
        del self.members[key]
        if result:
            self.ended[key] = result, self.broker.now_ms() + keep_ms

    def change(self, shard: Shard, member: str, what: str, ms: int = 0, value: str = "", *, unique: str = "") -> str:
        """See job_change.lua."""
        key = shard, member
        job = self.members.get(key)
        if job is None:
            return "GONE"
        if (job.died_ms is None) == (what in ("revive", "bury")):
            return "WAITING" if job.died_ms is None else "DEAD"
        if job.holder:
            return "HELD"
        if what == "revive" and (shard, unique) in self.waiting_keys:
            return "TAKEN"
        if what == "revive":
            job.payload, job.priority, job.unique, job.died_ms = value, ms, unique, None
            self._await(key, 0)
        elif what == "move":
            self._await(key, ms)
        elif what == "bury":
            self.ended.pop(key, None)
            self._forget(key)
        else:
            self._forget(key, value if what == "cancel" else "", ms)
        return "OK"

    def views(self, items: Sequence[Key]) -> list[JobView]:
        now_ms, found = self.broker.now_ms(), []
        for key in items:
            text, until_ms = self.ended.get(key, ("", 0))
            view, job = JobView("", "", None, None, text if until_ms > now_ms else ""), self.members.get(key)
            if job is not None:
                waits = job.wake_ms if job.wake_ms > now_ms and job.died_ms is None else None
                view = JobView(job.payload, job.holder, waits, job.died_ms, view.result)
            found.append(view)
        return found

    # -- what a worker does

    def turn(self, item: StandingJob) -> tuple[int, ...]:
        """Of what is due the most urgent comes first, else what comes due first, and of that the most urgent."""
        if item.wake_ms <= self.broker.now_ms():
            return 0, item.wake_ms - item.priority * PATIENCE_MS
        return 1, item.wake_ms, -item.priority

    def free(self) -> list[Key]:
        """See `Memory.free`; the dead are not free."""
        return [key for key in super().free() if self.members[key].died_ms is None]

    def claim(
        self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None
    ) -> Claim[JobEntry]:
        holder, leased = self.lease(shard, limit, lease_ms)
        for member, _ in leased:
            self._give_up_key((shard, member))
        entries = tuple(JobEntry(member, job.payload, lapsed=False, reclaims=0) for member, job in leased)
        return Claim(self.broker.now_ms(), None, "memory", holder, entries)

    def settle(self, shard: Shard, settlements: Sequence[JobSettlement], *, dead_ms: int, dead_most: int) -> Settled:
        now_ms, replies = self.broker.now_ms(), [int(self._settle(shard, item)) for item in settlements]
        dead = sorted((job.died_ms, key) for key, job in self.members.items() if key[0] == shard and job.died_ms)
        for left, (died_ms, key) in zip(range(len(dead), 0, -1), dead, strict=True):
            if left > dead_most or died_ms <= now_ms - dead_ms:
                del self.members[key]
        return Settled(now_ms, None, replies)

    def _settle(self, shard: Shard, item: JobSettlement) -> bool:
        key = shard, item.member
        job = self.held(key, item.holder)
        if job is None:
            return False
        if item.what in ("retry", "dead"):
            job.payload = item.text
        if item.what == "done":
            self._forget(key, item.text, item.ms)
        elif item.what == "dead":
            job.holder, job.died_ms = "", self.broker.now_ms()
        else:
            self._await(key, self.broker.now_ms() + item.ms)
        if item.callback:
            member, priority, payload = item.callback.split(" ", 2)
            self._add(shard, NewJob(member, 0, int(priority), "", payload))
        return True


# -- of this process

_lock = RLock()
_jobs: MemoryJobs | None = None
#: Whose they are, see Note [Empty at the start of a test]. None: of whoever runs now, until `kept` ends.
_test: tuple[str, object] | None = None


def jobs_in_memory() -> MemoryJobs:
    """Return the jobs of the present test."""
    global _jobs, _test
    with _lock:
        test = _present_test()
        is_over = _test is not None and (_test[0] != test[0] or _test[1] is not test[1])
        if _jobs is None or is_over or (_test is not None and len(_jobs.added) >= MOST_IN_MEMORY):
            _jobs, _test = MemoryJobs(NoRedis()), test
        return _jobs


@contextmanager
def kept(worker: NoRedis, now_ms: int) -> Iterator[MemoryJobs]:
    """Let a worker have the present test's jobs until the block ends. What is due by now is due by its clock too."""
    global _jobs, _test
    jobs = jobs_in_memory()
    for job in jobs.members.values():
        if job.wake_ms <= now_ms:
            job.wake_ms = 0
    jobs.broker, _test = worker, None
    try:
        yield jobs
    finally:
        _jobs = None


def _present_test() -> tuple[str, object]:
    """Return what changes with each test. See Note [Empty at the start of a test]."""
    name = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # without its phase
    return name, None if name else getattr(sys.modules.get("django.core.mail"), "outbox", None)
