"""What was seen, as values. Ages and delays are in seconds, by Redis' clock. A field is None where it is not known."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...index.counters import Counts
from ...models import Control
from ...sync import LIVE_SECONDS, Drift
from ...sync.pruning import LastPass
from ..minutes import Load

#: Nobody looks at more, and a count takes longer the more there are. A count that is one more means: more than that.
MOST_COUNTED = 100_000

#: So many schedules of unknown tasks are looked at: each page of the admin's list does that.
MOST_UNKNOWN = 1000

#: So many open runs of each status are read for what no setting names, and so many failures for jobs that have failed.
MOST_READ = 10_000

#: Something is wrong; and: Redis or the database could not be looked at. Without either the exit status is 0.
WRONG: Final = 1
BLIND: Final = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong: a stable word, one line that says what to do, WRONG or BLIND, and whose queue it is."""

    code: str
    message: str
    status: int = WRONG
    queue: str = ""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as it last described itself."""

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
        """True while its heartbeat is young enough."""
        return self.heartbeat_age <= LIVE_SECONDS


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard. `oldest_due` is how long its head waits for a worker, None where nothing is due.

    Of its members, and of those that are due, `jobs` and `jobs_due` are jobs and backfilled points. `epoch` is
    `built`, `building` (a worker fills it from the database) or `absent` (Redis was flushed).
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
    """The shards of one queue together; `oldest_due` is 0.0 where nothing is due, `served` by a live worker."""

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
    """The Redis or Valkey itself. `disk_problem` is the field of INFO that says that it cannot write to its disk."""

    name: str = ""
    version: str = ""
    memory_policy: str = ""
    used_bytes: int | None = None
    max_bytes: int | None = None
    appendonly: bool | None = None
    disk_problem: str = ""


#: The numbers of shards that add up.
SUMMED = ("members", "due", "leased", "jobs", "jobs_due")

#: Where the next one waits for longer, the workers are busy.
WAITING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RedisView:
    """What Redis knows. `servers`, one for each primary, is None where it was not asked about itself."""

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
        """Say whether a live worker serves a queue."""
        return any(worker.live and queue in worker.queues for worker in self.workers)

    @property
    def late(self) -> bool:
        """True where something has been due for longer than it takes workers that are not busy."""
        return any((shard.oldest_due or 0.0) > WAITING_SECONDS for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Named:
    """How many schedules, and the names of the first few."""

    count: int
    names: tuple[str, ...]

    @property
    def listed(self) -> str:
        """The names in a line, and whether there are more."""
        return ", ".join(self.names) + (", …" if self.count > len(self.names) else "")


class Unnamed(NamedTuple):
    """A queue, a task or an alias of TASKS that rows name and no setting does, and how many of them do.

    `kind` is `queue`, `task` or `backend`, as the column of a job. `jobs` are those without an outcome. Of a queue
    `schedules` are the enabled ones, and `runs` the ordered ones; tasks and aliases of schedules are in
    `unknown_tasks` and `refused`. Of jobs and runs the MOST_READ oldest of each status are counted.
    """

    kind: str
    name: str
    jobs: int
    schedules: int = 0
    runs: int = 0


@dataclass(slots=True)
class DatabaseView:
    """What the database knows. A count is None where it was not counted in time.

    `refused` are the schedules whose TASKS backend is unknown or does not take the task, `failed_jobs` the jobs among
    the newest MOST_READ failures that are kept. No count but that of `refused` is more than MOST_COUNTED + 1.
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
    """Redis against the database. `layout` is `ours`, `foreign` or `none` (nobody has taken the prefix yet).

    `foreign` says what to do; the numbers are None there. `stale_edits` are edits, deletions and moves that Redis has
    not followed for long. `pruned` is the last pass of pruning, `unnamed` what no setting names.
    """

    layout: str
    foreign: str = ""
    drift: Drift | None = None
    stale_edits: int | None = None
    pruned: LastPass | None = None
    unnamed: tuple[Unnamed, ...] = ()

    def excess(self, redis: RedisView) -> int:
        """Return how many entries differ beyond what can be under way: between ledger and Redis an entry is leased."""
        drift = self.drift
        if drift is None or drift.unbuilt:
            return 0
        leased = sum(shard.leased for shard in redis.shards)
        return max(0, drift.missing + drift.ghosts + drift.torn - leased)


@dataclass(slots=True)
class Snapshot:
    """Everything that was seen, `load` of late. A side is None where it was not looked at, or `blind` says why."""

    alias: str
    prefix: str
    redis: RedisView | None = None
    database: DatabaseView | None = None
    comparison: Comparison | None = None
    load: Load | None = None
    #: What was counted in the last hour.
    last_hour: Counts | None = None
    #: What people hold back: rows that are in force.
    held_back: Sequence[Control] | None = None
    #: The enabled schedules whose task no installed app has, up to MOST_UNKNOWN + 1 of them; one name for each task.
    unknown_tasks: Named | None = None
    #: The schedules that have not succeeded in time, up to MOST_UNKNOWN + 1 of them.
    late: Named | None = None
    blind: list[Problem] = field(default_factory=list)
