"""One look at the tables and at the keys, past the package. Instants are ms."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from django.db import connection

from django_delayq.models import Run, Schedule, ScheduleState, Tombstone

from .wire import plain

OPEN = ("queued", "running", "retrying")
RUN = (
    "id", "schedule_id", "origin", "separate", "due_at", "last_due_at", "status", "attempt", "fence", "reason",
    "started_at", "claimed_at", "worker", "token", "task", "queue", "backend", "call", "unique_key", "expires_at",
    "created_at", "generation",
)  # fmt: skip
SCHEDULE = ("id", "generation", "synced_generation", "enabled", "queue", "effective_from", "created_at")
#: The sets that have members: of what waits, by its score, and of what has its turn.
SCORED = ("due", "ready", "jobs", "jobs-ready")
STATE = ("schedule_id", "last_due_at", "next_due_at", "run_count")


def _ms(value):
    """Return an instant as a column holds it in ms."""
    return None if value is None else -(-_us(value) // 1000)


@lru_cache(maxsize=4096)
def _us(value):
    """Return an instant as a column holds it (text on SQLite) in µs."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return round(moment.timestamp() * 1_000_000)


def _select(model, columns):
    quoted = ", ".join(f'"{name}"' for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT {quoted} FROM "{model._meta.db_table}" ORDER BY 1')  # noqa: S608 - our own names
        return cursor.fetchall()


class RunRow:
    """A row of the ledger."""

    def __init__(self, raw):
        self.raw = raw
        (self.pk, self.schedule, self.origin, separate, due, last, self.status, self.attempt, self.fence, self.reason,
         started, claimed, self.worker, self.token, self.task, self.queue, self.backend, self.call, self.unique_key,
         expires, created, generation) = raw  # fmt: skip
        self.separate = bool(separate)
        self.due = _ms(due)
        self.until = self.due if last is None else _ms(last)
        self.final = self.status not in OPEN
        self.counted = self.final and self.status != "skipped" and started is not None and claimed is not None
        self.expires_at = _ms(expires)
        self.generation = _us(created) + generation
        self.job_id = f"{self.pk}-{self.token}" if self.token else ""
        self.key = (None, self.origin, self.token) if self.token else (self.schedule, self.origin, self.due)

    def __repr__(self):
        name = f"job {self.job_id}" if self.token else f"run {self.pk} of {self.schedule}"
        return f"<{name} {self.origin} {self.due}..{self.until} {self.status} {self.reason}>"


class ScheduleRow:
    """A definition with its state, and where its member belongs."""

    def __init__(self, raw, state, tag):
        self.pk, self.generation, synced, enabled, self.queue, effective, created = raw
        self.enabled, self.mirrored = bool(enabled), synced == self.generation
        self.effective, self.created = _ms(effective), _ms(created)
        self.last_due, self.next_due, self.run_count = state or (None, None, 0)
        self.last_due, self.next_due = _ms(self.last_due), _ms(self.next_due)
        self.shard = tag(f"s{self.pk}", self.queue)

    def __repr__(self):
        mirrored = "" if self.mirrored else " unmirrored"
        return (
            f"<schedule {self.pk} {self.shard} from {self.effective} last {self.last_due} g{self.generation}{mirrored}>"
        )


@dataclass
class Shard:
    """What the keys of one place hold."""

    #: The scores, 0 of what has its turn.
    due: dict
    point: dict
    gen: dict
    lease: dict
    attempts: dict
    epoch: str | None
    #: Members that are in several of the sets, or in one of the other lane.
    astray: list

    @property
    def built(self):
        """True where the shard claims to be complete."""
        return self.epoch is not None and not self.epoch.startswith("building:")


class View:
    """Everything, at one instant."""

    def __init__(self, world):
        self.world = world
        self.runs = {raw[0]: RunRow(raw) for raw in _select(Run, RUN)}
        states = {raw[0]: raw[1:] for raw in _select(ScheduleState, STATE)}
        rows = _select(Schedule, SCHEDULE)
        self.schedules = {raw[0]: ScheduleRow(raw, states.get(raw[0]), world.tag_of) for raw in rows}
        self.tombstones = _select(Tombstone, ("member", "queue"))
        #: Schedule pk -> rows of due points, by due.
        self.chains = {}
        for run in sorted(self.runs.values(), key=lambda run: run.due):
            if run.origin == "due" and run.schedule in self.schedules:
                self.chains.setdefault(run.schedule, []).append(run)
        self._shards = None

    @property
    def shards(self):
        """Return what Redis holds, by the tag of the place."""
        if self._shards is None:
            self._shards = read_shards(self.world)
        return self._shards

    def row_of(self, key):
        """Return the row of a due point or order."""
        return next((run for run in self.runs.values() if run.key == key), None)

    def first_missing(self, pk):
        """Return where the chain goes on: its oldest open row, else the first point after all that is decided."""
        waiting = [row.due for row in self.chains.get(pk, []) if not row.final and not row.separate]
        if waiting:  # also before points that an edit, by a clock that is behind, has put before the one that runs
            return min(waiting)
        schedule = self.schedules[pk]
        after = max(schedule.effective, schedule.last_due or 0)
        return self.world.oracle.eras[pk][-1].next_after(after)


def read_shards(world):
    """Return every shard by its tag, in one round trip."""
    pipeline = world.stage.client.pipeline(transaction=False)
    for tag in world.tags:
        for part in SCORED:
            pipeline.zrange(f"{tag}:{part}", 0, -1, withscores=True)
        for part in ("point", "gen", "lease", "attempts"):
            pipeline.hgetall(f"{tag}:{part}")
        pipeline.get(f"{tag}:epoch")
    replies = iter(pipeline.execute())
    found = {}
    for tag in world.tags:
        due, astray = {}, []
        for part in SCORED:
            for name, score in next(replies):
                member = plain(name)
                if member in due or (member[0] == "j") != part.startswith("jobs"):
                    astray.append(member)
                due[member] = 0 if part.endswith("ready") else int(score)
        point, gen, lease, attempts = ({plain(k): plain(v) for k, v in next(replies).items()} for _ in range(4))
        numbers = [{k: int(v) for k, v in part.items()} for part in (point, gen)]
        epoch = next(replies)
        lease = {member: holder.partition(" ")[0] for member, holder in lease.items()}  # the fence
        found[tag] = Shard(due, *numbers, lease, attempts, None if epoch is None else plain(epoch), astray)
    return found
