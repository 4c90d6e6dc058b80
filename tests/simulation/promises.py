"""What must hold of jobs: after every step, at every start, and once all is quiet. See invariants.py for due points."""

from django.db import connection

from django_delayq.broker import keys
from django_delayq.broker.keys import member_shard
from django_delayq.models import Job

from .callers import Wanted
from .faults import Broken
from .wire import plain

FINAL = ("SUCCESSFUL", "FAILED")


class Promises:
    """Looks past the package: at the table, at the keys, and at what the workers execute."""

    def __init__(self, world):
        self.world = world

    # -- after every step

    def after_step(self):
        """An outcome that stood once stands for ever, but where a server lost it, or somebody revived the job."""
        world = self.world
        if not world.wanted:
            return
        for item, outcome in self._outcomes():
            if item.outcome is None and outcome is not None:
                item.outcome, item.losses = outcome, world.losses
                world.stage.seen["job ended"] += 1
            elif item.outcome != outcome and self._stands(item):
                raise Broken("I2 the outcome of a job changed", item, outcome)

    def _stands(self, item):
        """Say whether nothing may change an outcome. An overtaken worker stores a plain job's result all the same."""
        overtaken = item.alias == "stored" and item.begun > 1
        return item.losses == self.world.losses and not (item.revived or self.world.restores or overtaken)

    def _outcomes(self):
        """Yield each job with what stands of its end, None before."""
        world, rows = self.world, self._rows()
        items = list(world.wanted.values())
        pipeline = world.stage.client.pipeline(transaction=False)
        for item in items:
            place = member_shard(item.member, item.queue, world.config.shard_count(item.queue))
            pipeline.get(keys.result_key(world.config.prefix, place, item.member))
            pipeline.zscore(keys.all_keys(world.config.prefix, place)["dead"], item.member)
        replies = pipeline.execute()
        for item, result, died in zip(items, replies[::2], replies[1::2], strict=True):
            row = rows.get(item.member)
            if item.durable:
                yield item, row if row and row.startswith(FINAL) else None
            else:
                yield item, row or ("dead" if died is not None else None if result is None else plain(result))

    def _rows(self):
        with connection.cursor() as cursor:
            cursor.execute(f'SELECT member, status, state FROM "{Job._meta.db_table}"')  # noqa: S608 - our own name
            return {member: f"{status} {state}" for member, status, state in cursor.fetchall()}

    # -- at a start

    def at_begin(self, stepped, held):
        """Check that this job may start now."""
        world = self.world
        item = world.wanted.get(held.result_id)
        if item is None:
            if not world.untold and not world.restores:
                raise Broken("J a job that nobody enqueued", held.result_id)
            item = world.wanted[held.result_id] = Wanted(held.result_id, held.call.backend, 3, None, 0, guessed=True)
        if stepped.lapsed(held):
            raise Broken("I4 started after its lease", stepped.name, held.member)
        lost = world.losses or world.restores
        if item.cancelled and not lost:
            raise Broken("J started although it was cancelled", item)
        if world.clock.server_ms() < item.after_ms and not world.false_clock:
            raise Broken("J started before its time", item, world.clock.server_ms())
        if item.outcome is not None and item.alias != "stored" and not lost:
            raise Broken("R2 started after its outcome was recorded", stepped.name, item)
        for other in world.workers:
            for running in other.slots.begun:
                if running.member == held.member and running is not held and not other.lapsed(running) and not lost:
                    raise Broken("I3 two executions of one job", item, other.name, stepped.name)
        item.begun += 1
        world.stage.seen["job taken over"] += held.entry.lapsed
        # Take-overs of jobs are counted in a row: an attempt that has ended begins anew.
        most = item.attempts * (1 + world.config.max_reclaims) + world.losses + world.restores
        if item.begun > most:
            raise Broken("I7 executed too often", item, most)

    # -- once all is quiet

    def at_end(self):
        """Every job has one outcome, and nothing is left over."""
        world = self.world
        for item in world.wanted.values():
            safe = item.durable or not (world.losses or world.restores)
            if item.outcome is None and safe and not item.cancelled and not (item.revived and not item.durable):
                raise Broken("I1 a job without outcome", item)
        left = {}
        for place in world.shards:
            names = keys.all_keys(world.config.prefix, place)
            client = world.stage.client
            for part in ("jobs", "ready"):
                left |= dict.fromkeys(client.zrange(names[part], 0, -1), part)
            left |= dict.fromkeys(client.hkeys(names["held"]), "held")
        if left:
            raise Broken("I1 a job is left over", left)
