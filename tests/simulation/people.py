"""The steps of everybody but the workers: people who edit, the clocks, the server and the database that lose things."""

from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import transaction

from django_delayq import actions
from django_delayq.index import web
from django_delayq.models import Run, Schedule
from django_delayq.recurrence import from_ms, to_ms

from .faults import Broken, step
from .stage import TASK
from .view import OPEN, View, read_shards
from .wire import deliver, plain

#: No history takes so long.
FOR_EVER_MS = 10**8


def seconds(number):
    """Return a duration."""
    return timedelta(seconds=number)


class People:
    """Schedules are named `a`, `b`, `c`; a name that is deleted may come again."""

    # -- definitions

    @step
    def create(self, name="a", every=10, once_in=None, queue="default", *, seen=True, **values):
        """Make a schedule, unless there is one of this name. Not `seen`: by a process that does not mirror."""
        if name in self.names:
            return
        with self._web(seen):
            kind = {"kind": "every", "every": seconds(every)}
            if once_in is not None:
                kind = {"kind": "once", "at": self._soon(once_in)}
            values = {"backoff": seconds(5), **values}
            with self._noted(name):
                Schedule.objects.create(name=name, task=TASK, queue=queue, **kind, **values)

    @step
    def edit(self, name="a", *, every=None, start_in=None, end_in=None, seen=True, **values):
        """Change a schedule, if it is there, never twice in one ms.

        `start_in`, `end_in`: seconds from now to its first point, to its end.
        """
        if name not in self.names:
            return
        with self._web(seen):
            self.advance_clock(1)
            row = Schedule.objects.get(pk=self.names[name])
            self._note_owed(row, values)
            if row.pk in self.blind and row.synced_generation != row.generation:
                self.oracle.eras[row.pk][-1].unknown = True
            (self.blind.discard if seen else self.blind.add)(row.pk)
            moves = values.get("queue", row.queue) != row.queue
            self.invariants.moved[row.pk] += moves
            if not values.get("enabled", row.enabled):
                self._note_left_open(row, values.get("queue", row.queue))
            if row.kind == "every":
                values |= {} if every is None else {"every": seconds(every)}
                values |= {} if start_in is None else {"start_at": self._soon(start_in)}
                values |= {} if end_in is None else {"end_at": self._soon(end_in)}
            for field, value in values.items():
                setattr(row, field, value)
            with suppress(ValidationError), self._noted(name):  # such as an end before the first point
                row.save()

    def _note_left_open(self, row, queue):
        """While it moves, one that is switched off has an entry nowhere: only a full sweep closes its open row."""
        member = f"s{row.pk}"
        absent = member not in read_shards(self)[self.tag_of(member, queue)].due
        self.unseen = self.unseen or (absent and bool(self._claimed_points(row.pk)))

    def change(self, name="a", changes=None, **options):
        """Make these changes to a schedule."""
        self.edit(name, **changes, **options)

    @step
    def delete(self, name="a", *, seen=True):
        """Delete a schedule, if it is there."""
        pk = self.names.pop(name, None)
        if pk is not None:
            with self._web(seen):
                self.oracle.forget(pk)
                Schedule.objects.get(pk=pk).delete()

    @step
    def order(self, name="a", *, seen=True):
        """Run now; two orders are never given in one ms."""
        self.advance_clock(1)
        if name in self.names:
            with self._web(seen):
                actions.run_now(Schedule.objects.get(pk=self.names[name]))

    @contextmanager
    def _web(self, seen):
        """Act as a web process: one that mirrors, or one with MIRROR = False."""
        self.unseen = self.unseen or not seen
        self.delayed = self.delayed or not seen or self.plan is not None
        self.stage.config = replace(self.config, mirror=seen)
        try:
            with self.as_actor("web"):
                yield
        finally:
            self.stage.config = self.config

    @contextmanager
    def _noted(self, name):
        """Tell the oracle what was written, at the commit, before anything else follows it."""

        def note():
            row = Schedule.objects.get(name=name)
            self.names[name] = row.pk
            self.oracle.note(row, self._claimed_points(row.pk))

        with transaction.atomic():
            transaction.on_commit(note)
            yield

    def _claimed_points(self, pk):
        """Return which due points of a schedule a worker has, up to their record, or which wait for another attempt."""
        held = [item for stepped in self.workers for item in stepped.holds]
        runs = [item.outcome.run for item in held]
        shards = read_shards(self).values()
        leased = [shard.point[f"s{pk}"] for shard in shards if f"s{pk}" in shard.lease]
        runs += Run.objects.filter(schedule=pk, status__in=OPEN)
        return [*leased, *(to_ms(run.due_at) for run in runs if run.schedule_id == pk and run.origin == "due")]

    def _soon(self, ahead):
        return from_ms(to_ms(self.clock.wall()) + ahead * 1000)

    def _note_owed(self, row, values):
        """A point that is due now survives this edit (rule R8), but not a move, which has it explained by a stretch."""
        if values.get("queue", row.queue) != row.queue:
            self.invariants.owed = {item for item in self.invariants.owed if item[0] != row.pk}
            return
        shard = self.view.shards[self.tag_of(f"s{row.pk}", row.queue)]
        point = shard.point.get(f"s{row.pk}")
        undecided = point is not None and point > (self.view.schedules[row.pk].last_due or 0)
        if undecided and row.enabled and point <= self.clock.server_ms() and self.oracle.is_point(row.pk, point):
            self.invariants.owed.add((row.pk, point))

    # -- time

    @step
    def advance(self, ms=1000):
        """Let time go by, for everybody."""
        self.advance_clock(ms)

    @step
    def jump(self, ms=-1000):
        """Step the server's clock, which shortens or lengthens all leases."""
        self.clock.server_offset_ms += ms
        self.losses += 1
        self.false_clock = self.delayed = True
        self.advance_clock(1)

    @step
    def skew(self, who="web", ms=1000):
        """Set a process' wall clock."""
        self.clock.skews_ms[who] = ms
        self.false_clock = self.false_clock or who == "web"

    def advance_clock(self, ms):
        """Move the clocks on and let marks of rebuilds and the upkeep lease expire."""
        self.clock.elapsed_ms += ms
        client = self.stage.client
        client.set(self.stage.clock_key, self.clock.server_ms())
        for key, end in list(self.marks.items()):
            if end <= self.clock.elapsed_ms:
                del self.marks[key]
                if key.endswith(b":upkeep") or (client.get(key) or b"").startswith(b"building:"):
                    client.delete(key)

    # -- requests that come late

    def skew_worker(self, w=0, ms=1000, **options):
        """Set a worker's wall clock."""
        self.skew(self.workers[w].name, ms, **options)

    @step
    def late(self, back=0, script=None, w=None):
        """Deliver an old request to Redis, whether it was delivered before or not. Nobody hears the reply.

        It is the last but `back` of those of this `script` and of this worker's process, or of all.
        """
        owner = None if w is None else self.workers[w].name
        found = [item for item in self.requests if script in (None, item.kind) and owner in (None, item.owner)]
        if found:
            request = found[-1 - back % len(found)]
            if request.repeats_itself:
                return
            if request.name == "epoch":  # brings an epoch back, under which fences were given in this ms
                self.advance_clock(1)
            self.suspect = self.suspect or request.forces or not all(shard.built for shard in self.view.shards.values())
            self.strays = self.strays or (request.kind == "upsert" and not request.by_member)
            reply = deliver(self, request, late=True)
            if request.mode == "move":  # what a caller rescheduled waits for no delay
                for row, word in zip(request.items(), plain(reply).split(), strict=True):
                    if word == "MOVED":
                        self.holders.not_before.pop((request.shard, row[0]), None)
            if request.mode == "new":  # of a job that was retried since, it brings back the old
                known = {item.member: item.generation for item in self.wanted.values()}
                self.unseen |= any(int(row[1]) < known.get(row[0], 0) for row in request.items())
            self.stage.seen["late"] += 1

    # -- losses

    @step
    def flush_redis(self, shard=None):
        """Lose every key, or those of one shard."""
        names = self.key_names()
        if shard is not None:
            names = [name for name in names if name.startswith(self.tags[shard])]
        self.stage.client.delete(*names)
        self.lost_something()

    @step
    def snapshot(self):
        """Let a replica fall behind from here."""
        self.backup.save_keys()

    @step
    def rollback(self):
        """Fail over to the replica of the last snapshot."""
        if self.backup.keys is not None:
            # Another server: its clock is not behind that of the first one, which gave fences that this one forgot.
            self.clock.server_offset_ms = max(self.clock.server_offset_ms, 0)
            self.advance_clock(1)
            shards = self.backup.restore_keys()
            self.stage.seen["wound back"] += 1
            self.lost_something()
            self.suspect = True
            if shards != self.config.shards:  # the workers that find that end, and are started again
                self._restart(self.config.shards)

    @step
    def dump(self):
        """Make a backup of the database."""
        self.backup.save_tables()

    @step
    def restore(self):
        """Restore the database from the last backup. No worker lives through it."""
        if self.backup.tables is not None and not any(stepped.busy for stepped in self.workers):
            self.backup.restore_tables()
            self.stage.seen["restored"] += 1
            for stepped in list(self.workers):
                self.killed(stepped)
            self.restores += 1
            self.lost_something()
            self.suspect = True

    @step
    def recreate(self, what="schedule"):
        """Restore the database under running workers, and make a schedule or a job that gets a key anew."""
        self.backup.restore_tables()
        self.restores += 1
        self.lost_something()
        self.suspect = True
        self.advance_clock(20_000)
        if what == "job":
            self.enqueue()
        else:
            self.create("a")

    @step
    def reshard(self, count=3):
        """Restart all workers and web processes with another number of shards of the first queue."""
        if count != self.config.get_shard_count("default"):
            self._restart({**self.config.shards, "default": count})

    def _restart(self, shards):
        for stepped in self.workers:
            stepped.stop()
        self.view = View(self)
        self.config = self.stage.config = replace(self.config, shards=shards)
        web.forget_broker()
        self.lay_out()
        for stepped in list(self.workers):
            self.killed(stepped)
        while True:
            now, moving = self.clock.server_ms(), [view for tag, view in self.view.shards.items() if ":default:" in tag]
            leases = [member for view in moving for member in view.lease if view.due[member] > now]
            if self.workers[0].take_layout():
                break
            self.advance_clock(10_000)
            if self.clock.elapsed_ms > FOR_EVER_MS:
                raise Broken("F12 the index is not built anew", shards)
        if leases:
            raise Broken("F12 the index is taken away under leases", leases)
        self.lost_something()
        self.stage.seen["resharded"] += 1

    @step
    def foreign(self):
        """Lose every key, and have another database take the prefix over, with a member that nobody here knows."""
        self.flush_redis()
        tag = self.tags[0]
        client, now = self.stage.client, self.clock.server_ms()
        client.set(
            f"{self.config.prefix}:layout",
            '{"database": "another", "version": 1, "shards": {"default": 2, "mail": 1}}',
        )
        client.set(f"{tag}:epoch", "another")
        client.zadd(f"{tag}:due", {"s999": now})
        for part in ("point", "gen"):
            client.hset(f"{tag}:{part}", "s999", now)
        self.occupied = True

    @step
    def native(self):
        """Leave the prefix to this database again; the other one has lost nothing until then."""
        if "s999" not in self.view.shards[self.tags[0]].due:
            raise Broken("F31 a member of another database was removed", self.view.shards)
        self.flush_redis()
        self.occupied = False

    def lost_something(self):
        """What was claimed before may be claimed again now."""
        self.losses += 1
        self.delayed = True
        self.holders.lost.clear()
