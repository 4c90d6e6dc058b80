"""What must hold of jobs: after every step, at every start, and once all is quiet. See invariants.py for all work."""

import json

from .callers import Wanted
from .faults import Broken
from .stage import CALLBACK
from .view import View


class Promises:
    """Looks past the package: at the table, at the keys, and at what the workers execute."""

    def __init__(self, world):
        self.world = world

    # -- after every step

    def after_step(self, view):
        """Rows, outcomes, keys and callbacks are what was promised, at any instant."""
        wanted = self.world.wanted
        jobs = self._jobs(view)
        for item in wanted.values():
            row = jobs.get(item.id)
            if row is None:
                if not self.world.may_be_gone(item):
                    raise Broken("J a job is gone", item)
                continue
            if row.final != (item.outcome is not None) or (row.final and row.status != item.outcome):
                raise Broken("J the row of a job says another outcome than was recorded", item, row)
            if item.holds != (row.unique_key is not None):
                raise Broken("J a unique key is held too long, or not long enough", item, row)
            if row.final and row.expires_at is None:
                raise Broken("J an outcome of a job is kept for ever", item, row)
        self._callbacks_are_there()

    def _jobs(self, view):
        """Return the rows of jobs by the ids of their results; those that nobody has enqueued are callbacks."""
        jobs = {run.job_id: run for run in view.runs.values() if run.token}
        for key in jobs.keys() - self.world.wanted.keys():
            self._note_callback(jobs[key])
        return jobs

    def _note_callback(self, row):
        call = json.loads(row.call) if isinstance(row.call, str) else row.call
        parent = call["args"][0] if row.task == CALLBACK and call["args"] else ""
        if parent not in self.world.wanted:
            raise Broken("J a job that nobody enqueued", row)
        job = Wanted(row.job_id, row.backend, row.queue, parent=parent, generation=row.generation)
        self.world.wanted[job.id] = job

    def _callbacks_are_there(self):
        found = {}
        for item in self.world.wanted.values():
            if item.parent:
                found[item.parent] = found.get(item.parent, 0) + 1
        for item in self.world.wanted.values():
            if found.get(item.id, 0) != (item.ends if item.calls else 0):
                raise Broken("J not one callback for each outcome", item, found.get(item.id, 0))

    def swept(self, view):
        """After a sweep whatever is committed and has no outcome is in Redis, however late it was committed."""
        world = self.world
        if world.suspect or world.occupied or world.unseen:
            return
        for item in world.wanted.values():
            row = view.runs.get(item.pk)
            if row is None or row.final or row.job_id != item.id:
                continue
            shard = view.shards[world.tag_of(item.member, item.queue)]
            other = item.member not in shard.lease and shard.gen.get(item.member) != item.generation
            if shard.built and (item.member not in shard.due or other):
                raise Broken("J a job that waits is absent from Redis", item, row)

    # -- at a start

    def at_begin(self, stepped, held):
        """Check that this job may start now."""
        world, run = self.world, held.outcome.run
        if run.result_id not in world.wanted:
            self._jobs(View(world))
        item = world.wanted.get(run.result_id)
        if item is None:
            raise Broken("J a job that nobody wants was started", run.result_id)
        if stepped.lapsed(held):
            raise Broken("I4 started after its lease", stepped.name, held.member)
        lost = not stepped.claimed_since_loss(world.tag(held.shard), held.fence)
        if item.cancelled and not lost:
            raise Broken("J started although it was cancelled", item)
        if world.clock.server_ms() < item.after_ms and not (lost or world.false_clock):
            raise Broken("J started before its time", item, world.clock.server_ms())
        if item.outcome is not None and not lost:
            raise Broken("R2 started after its outcome was recorded", stepped.name, item)
        for other in world.workers:
            for running in other.slots.begun:
                since = other.claimed_since_loss(world.tag(running.shard), running.fence)
                same = running.member == held.member and running is not held
                if same and since and not (other.lapsed(running) or lost):
                    raise Broken("I3 two executions of one job", item, other.name, stepped.name)
        retried = lost and (held.entry.generation or 0) // 1000 == item.generation // 1000  # since it was claimed
        if held.entry.generation not in (None, item.generation) and not retried:
            raise Broken("J started in place of another row with its primary key", item, held.entry.generation)
        if item.unique is not None and not (item.until_end or item.keyless):
            raise Broken("J started before its unique key was free", item)
        item.begun += 1
        item.fences.add(held.fence)
        world.stage.seen["job taken over"] += held.entry.lapsed
        most = item.attempts + world.config.max_reclaims + world.losses
        if item.begun > most:
            raise Broken("I7 executed too often", item, most)

    # -- once all is quiet

    def nothing_missing(self):
        """Every job has its outcome, and no full sweep was needed for it."""
        for item in self.world.wanted.values():
            if item.outcome is None:
                raise Broken("I1 a job without outcome", item)

    def at_end(self, view):
        """Nothing is kept for longer than was said."""
        if self.world.false_clock or self.world.clock.skews_ms:
            return
        now = self.world.clock.server_ms()
        kept = [run for run in view.runs.values() if run.expires_at is not None and run.expires_at < now]
        if kept:
            raise Broken("J outcomes are kept for longer than was said", kept)
