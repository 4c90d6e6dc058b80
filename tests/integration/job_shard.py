"""The jobs of one shard of a test's own prefix: seeded and read past the scripts, and looked through after each call.

Times are ms relative to the server's clock at the test's start; see `shard.py`.
"""

from django_delayq.broker import Broker, JobBroker, JobSettlement, NewJob, Shard, keys
from django_delayq.broker.scripts import text, wire
from tests.integration.shard import LEASE_MS, PLACE, begin, listening

HASHES = ("payload", "held", "priority", "unique", "reclaims")
DEAD_MS, DEAD_MOST = 3_600_000, 1000
#: What one step of priority is worth, in ms.
PATIENCE_MS = 60_000


def new(member, wake=0, priority=0, unique="", payload=None):
    """Return a job to be added."""
    return NewJob(member, wake, priority, unique, f"payload of {member}" if payload is None else payload)


def names_of(claim):
    """Return the members of a claim in their order."""
    return [entry.member for entry in claim.entries]


class JobShard:
    """One shard. Each call of a script is followed by a look whether everything in it still fits together."""

    epoch = "e1"

    def __init__(self, broker, epoch="e1", shard=PLACE):
        self.broker, self.client, self.shard = broker, broker.client, shard
        self.jobs = JobBroker(broker)
        self.names = keys.all_keys(broker.config.prefix, shard, broker.worker)
        self.now = begin(broker)
        self.sound = True  # False where a test has put garbage there
        if epoch:
            self.client.set(self.names["epoch"], epoch)

    # -- the scripts

    def add(self, *jobs, again=False, epoch="e1"):
        """Add jobs; return per job '' or who stands for it, or None where the epoch is another."""
        replies = self.jobs.enqueue_each([(self.shard, jobs)], {self.shard: epoch}, again=again)
        self.look()
        found = []
        for _, reply in replies:
            if reply is None:
                return None
            found += reply
        return found

    def claim(self, request=1, limit=100, lease_ms=LEASE_MS, worker=None):
        """Claim; return the reply."""
        jobs = self.jobs if worker is None else JobBroker(Broker(timeout_seconds=5, worker=worker))
        claim = jobs.claim(self.shard, limit=limit, lease_ms=lease_ms, request=request)
        self.look(claimed=claim)
        return claim

    def renew(self, *leases, start=False):
        """Renew (member, holder); return who lost it."""
        lost = self.jobs.renew(self.shard, leases, lease_ms=LEASE_MS, start=start)
        self.look()
        return lost

    def settle(self, *items, dead_ms=DEAD_MS, dead_most=DEAD_MOST):
        """Settle (member, holder, what, ms, text); return per job whether it was still the holder's."""
        settled = self.jobs.settle(
            self.shard, [JobSettlement(*item) for item in items], dead_ms=dead_ms, dead_most=dead_most
        )
        self.look()
        return [bool(reply) for reply in settled.replies]

    def change(self, member, what, ms=0, value="", **options):
        """Cancel, move, revive or bury; return the reply."""
        reply = self.jobs.change(self.shard, member, what, ms, value, **options)
        self.look()
        return reply

    # -- shortcuts

    def held(self, *members, **options):
        """Add and claim jobs; return their holder."""
        self.add(*(new(member, **options) for member in members))
        claim = self.claim(request=self.broker.now_ms())
        assert set(members) <= set(names_of(claim))
        return claim.holder

    def set_times(self, **wakes):
        """Let jobs that wait have other times, as if these had passed."""
        self.client.zadd(self.names["jobs"], wakes)
        self.client.zadd(self.names["due"], {keys.POINTER: min(wakes.values())}, lt=True)

    def give_to(self, holder, member):
        """Let somebody else hold a job."""
        self.client.hset(self.names["held"], member, holder)

    def result(self, member):
        """Return (text, whether it expires) of a result, None where there is none."""
        key = keys.result_key(self.broker.config.prefix, self.shard, member)
        found = self.client.get(key)
        return None if found is None else (text(found), self.client.pttl(key) > 0)

    def put_result(self, member):
        """Let a result of a job stand."""
        self.client.set(keys.result_key(self.broker.config.prefix, self.shard, member), "result", px=60_000)

    # -- reads

    def scores(self, part):
        """Return member -> score of a sorted set, as it stands there."""
        found = self.client.zrange(self.names[part], 0, -1, withscores=True)
        return {text(name): score for name, score in found}

    def hash(self, part):
        """Return a hash."""
        return {text(k): text(v) for k, v in self.client.hgetall(self.names[part]).items()}

    def pointer(self):
        """Return when the jobs need attention by what stands in `due`, None where nothing does."""
        return self.scores("due").get(keys.POINTER)

    def state(self):
        """Return every structure that is not empty; `jobs` and `dead` with relative times, `ready` in its order."""
        found = {part: self.hash(part) for part in HASHES}
        for part in ("jobs", "dead"):
            found[part] = {name: score - self.now for name, score in self.scores(part).items()}
        found["ready"] = list(self.scores("ready"))
        return {part: values for part, values in found.items() if values}

    def raw(self):
        """Return everything that stands in the shard, to be compared with itself."""
        return {name: self.client.dump(name) for name in self.names.values() if self.client.exists(name)}

    # -- what must hold whenever no script is running

    def look(self, claimed=None):
        """Assert what must hold at each moment."""
        jobs, ready, dead = self.scores("jobs"), self.scores("ready"), self.scores("dead")
        self._look_at_pointer(jobs, ready, claimed)
        if not self.sound:
            return
        waiting = set(jobs) | set(ready)
        assert len(waiting) == len(jobs) + len(ready), "in two queues"
        assert not waiting & set(dead), "dead and not dead"
        assert set(self.hash("payload")) == waiting | set(dead), "a payload for each job, and for nothing else"
        assert set(self.hash("held")) <= waiting
        assert set(self.hash("priority")) <= waiting
        assert set(self.hash("reclaims")) <= waiting
        self._look_at_keys(waiting)

    def _look_at_pointer(self, jobs, ready, claimed):
        pointer, now = self.pointer(), self.broker.now_ms()
        if not jobs and not ready:
            assert pointer is None, "it stands for no job"
            return
        assert pointer is not None, "nobody would look for these jobs"
        if not ready:
            assert pointer == min(jobs.values())
            return
        assert pointer <= min([now, *jobs.values()]), "what is ready is due now"
        if claimed is not None and self.sound:
            first = next(iter(ready))
            steps = int(self.hash("priority").get(first, 0))
            became_due = (ready[first] + steps * PATIENCE_MS * 1000) // 1000
            assert pointer == min([became_due, claimed.now_ms, *jobs.values()])

    def _look_at_keys(self, waiting):
        unique, held = self.hash("unique"), self.hash("held")
        for name, value in unique.items():
            if name.startswith("k"):
                assert unique[value] == name, "who has a key knows it"
                assert " " not in held.get(value, ""), "a job that a worker has holds no key"
            else:
                assert name in waiting, "a key of nobody"

    def hints(self):
        """Subscribe; return a function that gives the hints that have come since."""
        return listening(self.broker, self.names)


__all__ = ["DEAD_MOST", "DEAD_MS", "LEASE_MS", "PATIENCE_MS", "PLACE", "JobShard", "Shard", "names_of",
           "new", "wire"]  # fmt: skip
