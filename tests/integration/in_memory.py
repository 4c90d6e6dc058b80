"""One shard in memory, seeded and read as `shard.py` and `job_shard.py` do it in Redis: the same tests are for both."""

from django_delayq.backend.memory import MemoryJobs, NoRedis
from django_delayq.broker import JobSettlement
from django_delayq.testing.points import MemoryPoints, StandingPoint
from tests.integration.job_shard import DEAD_MOST, DEAD_MS, names_of, new
from tests.integration.shard import LEASE_MS, PLACE, begin

PARTS = {"due": "wake_ms", "point": "point_ms", "gen": "generation", "lease": "holder", "attempts": "attempts"}


class MemoryShard:
    """See `SeededShard`."""

    epoch = "memory"

    def __init__(self):
        self.broker = MemoryPoints(NoRedis("test"))
        self.now = begin(self.broker)

    def seed(self, **parts):
        for part, values in parts.items():
            for member, value in values.items():
                item = self.broker.members.setdefault(
                    (PLACE, member), StandingPoint(wake_ms=0, point_ms=0, generation=0)
                )
                value = value if part == "lease" else int(value)
                setattr(item, PARTS[part], self.now + value if part in ("due", "point") else value)

    def member(self, name, due=-1000, gen=7, **hashes):
        self.seed(due={name: due}, point={name: due}, gen={name: gen}, **{k: {name: v} for k, v in hashes.items()})

    def held(self, *names):
        for name in names:
            self.member(name, due=LEASE_MS, lease="f")

    def state(self):
        found = {part: {} for part in PARTS}
        for (_, member), item in self.broker.members.items():
            found["due"][member], found["point"][member] = item.wake_ms - self.now, item.point_ms - self.now
            found["gen"][member] = str(item.generation)
            if item.holder:
                found["lease"][member] = item.holder
            if item.attempts:
                found["attempts"][member] = str(item.attempts)
        return {part: values for part, values in found.items() if values}

    def claim(self, request=1, limit=100, lease_ms=LEASE_MS):
        return self.broker.claim(PLACE, limit=limit, lease_ms=lease_ms, request=request)


class MemoryJobShard:
    """See `JobShard`."""

    epoch = "memory"

    def __init__(self):
        self.broker = NoRedis("test")
        self.jobs = MemoryJobs(self.broker)
        self.now = begin(self.broker)

    def add(self, *jobs):
        ((_, replies),) = self.jobs.enqueue_each([(PLACE, jobs)], {}, again=False)
        return replies

    def claim(self, request=1, limit=100, lease_ms=LEASE_MS):
        return self.jobs.claim(PLACE, limit=limit, lease_ms=lease_ms, request=request)

    def renew(self, *leases, start=False):
        return self.jobs.renew(PLACE, leases, lease_ms=LEASE_MS, start=start)

    def settle(self, *items, dead_ms=DEAD_MS, dead_most=DEAD_MOST):
        items = [JobSettlement(*item) for item in items]
        return [bool(n) for n in self.jobs.settle(PLACE, items, dead_ms=dead_ms, dead_most=dead_most).replies]

    def change(self, member, what, ms=0, value="", **options):
        return self.jobs.change(PLACE, member, what, ms, value, **options)

    def held(self, *members, **options):
        self.add(*(new(member, **options) for member in members))
        claim = self.claim()
        assert set(members) <= set(names_of(claim))
        return claim.holder

    def set_times(self, **wakes):
        for member, wake_ms in wakes.items():
            self.jobs.members[PLACE, member].wake_ms = wake_ms

    def give_to(self, holder, member):
        self.jobs.members[PLACE, member].holder = holder

    def pointer(self):
        alive = [job.wake_ms for job in self.jobs.members.values() if job.died_ms is None]
        return min(alive, default=None)

    def result(self, member):
        text = self.jobs.view(PLACE, member).result
        return (text, True) if text else None

    def put_result(self, member):
        self.jobs.ended[PLACE, member] = "result", self.now + 60_000

    def hash(self, part):
        if part == "unique":
            jobs = {member: f"k{job.unique}" for (_, member), job in self.jobs.members.items()
                    if job.unique and job.died_ms is None}  # fmt: skip
            return jobs | {f"k{unique}": member for (_, unique), member in self.jobs.waiting_keys.items()}
        return self.state().get(part, {})

    def state(self):
        members = {key[1]: job for key, job in self.jobs.members.items()}
        alive = {name: job for name, job in members.items() if job.died_ms is None}
        ready = [name for _, name in self.jobs.free() if alive[name].wake_ms <= self.broker.now_ms()]
        found = {
            "payload": {name: job.payload for name, job in members.items()},
            "held": {name: job.holder for name, job in alive.items() if job.holder},
            "priority": {name: str(job.priority) for name, job in alive.items() if job.priority},
            "unique": self.hash("unique"),
            "jobs": {name: job.wake_ms - self.now for name, job in alive.items() if name not in ready},
            "dead": {name: job.died_ms - self.now for name, job in members.items() if job.died_ms is not None},
            "ready": ready,
        }
        return {part: values for part, values in found.items() if values}

    def raw(self):
        return self.state(), dict(self.jobs.ended)
