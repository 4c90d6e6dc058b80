"""Values of a snapshot. Ages and delays are in seconds, by Redis' clock. None means not known."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...index.counters import Counts
from ...models import Control
from ...sync import LIVE_SECONDS, Differences
from ...sync.pruning import LastPass
from ..minutes import Load

#: Maximum of a count, because counting more takes longer. A result of one above it means "more than this".
MOST_COUNTED = 100_000

#: Maximum schedules with unknown tasks that are read: each page of the admin's list reads them.
MOST_UNKNOWN = 1000

#: Maximum open runs of each status that are searched for unknown names, and failures that are searched for jobs.
MOST_READ = 10_000

#: Exit status if something is wrong, and if Redis or the database could not be read. Without problems it is 0.
WRONG: Final = 1
BLIND: Final = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: a stable code, one line of text that includes the fix, WRONG or BLIND, and the queue it concerns."""

    code: str
    message: str
    status: int = WRONG
    queue: str = ""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker by its last heartbeat; `heartbeat_age` and `uptime` are in seconds."""

    name: str
    queues: tuple[str, ...]
    heartbeat_age: float
    uptime: float | None = None
    running: int | None = None
    held: int | None = None
    threads: int | None = None
    memory_mb: int | None = None

    @property
    def live(self) -> bool:
        return self.heartbeat_age <= LIVE_SECONDS


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard. `oldest_due` is the number of seconds its head has been due; None if nothing is due.

    `jobs` and `jobs_due` are the jobs and backfilled points among `members` and `due`. `epoch` is `built`, `building`
    (a worker is filling the shard from the database) or `absent` (Redis was flushed).
    """

    queue: str
    shard: int
    members: int
    due: int
    leased: int
    oldest_due: float | None
    epoch: str
    jobs: int = 0
    jobs_due: int = 0


class QueueView(NamedTuple):
    """The sum of a queue's shards. `oldest_due` is 0.0 if nothing is due, `served` whether a live worker serves it."""

    queue: str
    oldest_due: float
    served: bool
    members: int
    due: int
    leased: int
    jobs: int
    jobs_due: int


@dataclass(frozen=True, slots=True)
class ServerView:
    """The Redis or Valkey server. `disk_problem` is the INFO field that reports a failed write to disk."""

    name: str = ""
    version: str = ""
    memory_policy: str = ""
    used_bytes: int | None = None
    max_bytes: int | None = None
    appendonly: bool | None = None
    disk_problem: str = ""


SUMMED = ("members", "due", "leased", "jobs", "jobs_due")

#: Seconds of waiting above which workers are considered busy.
WAITING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RedisView:
    """Redis' side of a snapshot. `servers` has one item for each primary; None if INFO was not read."""

    workers: tuple[WorkerView, ...]
    shards: tuple[ShardView, ...]
    servers: tuple[ServerView, ...] | None = None

    @property
    def queues(self) -> tuple[QueueView, ...]:
        """The queues in the order of the settings."""
        return tuple(map(self._queue, dict.fromkeys(shard.queue for shard in self.shards)))

    def _queue(self, queue: str) -> QueueView:
        shards = [shard for shard in self.shards if shard.queue == queue]
        sums = {name: sum(getattr(shard, name) for shard in shards) for name in SUMMED}
        oldest = max(shard.oldest_due or 0.0 for shard in shards)
        return QueueView(queue, oldest, self.serves(queue), **sums)

    def serves(self, queue: str) -> bool:
        """Return whether a live worker serves a queue."""
        return any(worker.live and queue in worker.queues for worker in self.workers)

    @property
    def late(self) -> bool:
        return any((shard.oldest_due or 0.0) > WAITING_SECONDS for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Named:
    """The number of schedules, and the names of the first few."""

    count: int
    names: tuple[str, ...]

    @property
    def listed(self) -> str:
        return ", ".join(self.names) + (", …" if self.count > len(self.names) else "")


class Unnamed(NamedTuple):
    """A queue, task or TASKS alias that rows name and no setting does, and the number of these rows.

    `kind` is `queue`, `task` or `backend`. `jobs` counts jobs without an outcome; for a queue, `schedules` counts
    enabled schedules and `runs` ordered runs. Unknown tasks and aliases of schedules are in `unknown_tasks` and
    `refused` instead. Jobs and runs are counted among the MOST_READ oldest of each status.
    """

    kind: str
    name: str
    jobs: int
    schedules: int = 0
    runs: int = 0


@dataclass(slots=True)
class DatabaseView:
    """The database's side of a snapshot. A count is None if it was not ready in time.

    `refused` are the schedules whose TASKS backend is unknown or rejects their task; `failed_jobs` counts the jobs
    among the newest MOST_READ failures. Counts other than those of `refused` are at most MOST_COUNTED + 1.
    """

    alias: str
    vendor: str
    parked: Named | None = None
    failing: Named | None = None
    refused: Named | None = None
    open_runs: dict[str, int] | None = None
    failed_jobs: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Redis compared with the database. `layout` is `ours`, `foreign` or `none` (the prefix is not in use yet).

    `foreign` is the text of the problem; the counts are None then. `stale_edits` are edits, deletions and moves that
    Redis should have by now. `pruned` is the last pruning pass, `unnamed` the names that no setting has.
    """

    layout: str
    foreign: str = ""
    drift: Differences | None = None
    stale_edits: int | None = None
    pruned: LastPass | None = None
    unnamed: tuple[Unnamed, ...] = ()

    def excess(self, redis: RedisView) -> int:
        """Return how many more entries differ than are leased: a leased entry may be between ledger and Redis."""
        drift = self.drift
        if drift is None or drift.unbuilt:
            return 0
        leased = sum(shard.leased for shard in redis.shards)
        return max(0, drift.missing + drift.ghosts + drift.torn - leased)


@dataclass(slots=True)
class Snapshot:
    """A snapshot of Redis and the database. A side is None if it was not read; if that failed, `blind` says why."""

    alias: str
    prefix: str
    redis: RedisView | None = None
    database: DatabaseView | None = None
    comparison: Comparison | None = None
    load: Load | None = None
    last_hour: Counts | None = None
    #: Pauses and limits in force.
    held_back: Sequence[Control] | None = None
    #: Enabled schedules whose task no installed app has, at most MOST_UNKNOWN + 1; one name for each task.
    unknown_tasks: Named | None = None
    #: Late schedules, at most MOST_UNKNOWN + 1.
    late: Named | None = None
    blind: list[Problem] = field(default_factory=list)
