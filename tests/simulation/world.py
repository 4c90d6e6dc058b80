"""One history: database, Redis, workers, people. Each public method is a step; invariants are checked after it."""

import random
from contextlib import contextmanager
from functools import wraps
from zlib import crc32

from django.db import OperationalError, connection

from django_delayq import sync
from django_delayq.index import Shard, keys, web
from django_delayq.models import Run, Schedule
from django_delayq.sync import layout

from .backup import Backup
from .callers import Callers
from .faults import Broken, Killed, step
from .holders import Holders
from .invariants import Invariants
from .oracle import Oracle
from .people import People
from .promises import Promises
from .stepped import Stepped
from .view import OPEN
from .wire import lost

WORKERS = 3


def of_worker(method):
    """Make a method a step of worker `w`, unless that one stands in the middle of another. It may be killed there."""

    @step
    @wraps(method)
    def wrapper(self, w=0, *args, **kwargs):
        stepped = self.workers[w]
        if stepped.busy:
            return
        stepped.busy = True
        with self.as_actor(stepped.name):
            try:
                method(self, stepped, *args, **kwargs)
            except Killed:
                self.killed(stepped)
            finally:
                stepped.busy = False

    return wrapper


class World(People, Callers):
    """Begins with a new database, an empty Redis that is marked as built, and three workers."""

    def __init__(self, stage):
        self.stage, self.config, self.clock = stage, stage.first_config, stage.clock
        stage.config = self.config
        stage.world = self
        stage.seen["histories"] += 1
        random.seed(0)
        self.plan, self.acting, self.creating = None, "web", "web"
        #: How often Redis lost something or its clock stepped; how often the database was restored.
        self.losses = self.restores = 0
        #: True once Redis may differ from the database without anybody being to blame until the next full sweep.
        self.suspect = False
        #: True once the clocks of Redis and the web processes differ, so that an edit can take back due points.
        self.false_clock = False
        #: True once a late request may have put a schedule back that was moved or is off. Its next claimer drops it;
        #: one that is switched on meanwhile runs what was put back, as a point that was due before.
        self.strays = False
        #: True once somebody deleted or ordered something without telling Redis: only a full sweep finds it.
        self.unseen = False
        #: Schedules whose last edit was made by a process that does not mirror.
        self.blind = set()
        #: True once an edit may have reached Redis late, so that a point of the old definition came due.
        self.delayed = False
        #: True while the prefix is another database's.
        self.occupied = False
        #: True inside a step; True after one that found something wrong.
        self.inside = self.over = False
        self.requests, self.marks = [], {}
        #: (place, fence) -> losses of Redis until that claim.
        self.claims = {}
        self.lay_out()
        self.oracle, self.holders, self.invariants = Oracle(), Holders(self), Invariants(self)
        self.workers, self.lives, self.names = [], 0, {}
        self.promises = Promises(self)
        self.begin_calling()
        self.clock.reset()
        self.backup = Backup(self)
        self.backup.clear()
        self.advance_clock(0)
        layout._known.clear()
        web.forget_broker()
        for number in range(WORKERS):
            self.workers.append(self._born(number))
        sync.check_layout(self.workers[0].worker.broker)
        sync.sweep_fully(self.workers[0].worker.broker)
        self.invariants.after_step()

    # -- names

    def lay_out(self):
        """Work out where members live."""
        self.shards = [
            Shard(queue, n) for queue in self.config.queues for n in range(self.config.get_shard_count(queue))
        ]
        self.tags = [self.tag(place) for place in self.shards]

    def tag(self, place):
        """Return the hash tag of a place."""
        return f"{{{self.config.prefix}:{place}}}"

    def tag_of(self, member, queue):
        """Return the tag of the place where a member belongs."""
        return self.tag(
            Shard(queue, crc32(member.encode("utf-8", "surrogateescape")) % self.config.get_shard_count(queue))
        )

    def key_names(self):
        """Return every key that this history can have written."""
        names = list(keys.list_prefix_keys(self.config.prefix))
        for place in self.shards:
            owners = ["-", *(f"w{n}.{life}" for n in range(WORKERS + 1) for life in range(self.lives + 1))]
            names += keys.build_keys(self.config.prefix, place).values()
            names += [keys.build_keys(self.config.prefix, place, owner)["journal"] for owner in owners]
        return sorted(set(names))

    @staticmethod
    def key_of(run):
        """Return what a row of the ledger is about, as `RunRow.key`."""
        due_ms = round(run.due_at.timestamp() * 1000)
        return (None, "job", run.token) if run.token else (run.schedule_id, str(run.origin), due_ms)

    def executing(self, key, view):
        """Return who has begun this point under a lease that is his."""
        for stepped in self.workers:
            for held in stepped.begun:
                mine = view.shards[self.tag(held.shard)].lease.get(held.member) == held.fence
                if mine and not stepped.lapsed(held) and self.key_of(held.outcome.run) == key:
                    return held
        return None

    def note_claim(self, owner, place, fence):
        """Remember what the definitions were when these were claimed, and what Redis had lost until then."""
        for stepped in self.workers:
            if stepped.name == owner and (place, fence) not in stepped.known:
                stepped.known[place, fence] = dict(Schedule.objects.values_list("pk", "generation"))
                stepped.ended[place, fence] = set(Run.objects.exclude(status__in=OPEN).values_list("pk", flat=True))
                self.claims[place, fence] = self.losses

    # -- faults

    @contextmanager
    def planned(self, fault):
        """Have this fault strike the step that follows."""
        before, self.plan = self.plan, fault
        try:
            yield
        finally:
            self.plan = before

    @contextmanager
    def as_actor(self, name):
        """Let a process act: its wall clock, its requests."""
        before = self.acting, self.clock.actor
        self.acting = self.clock.actor = name
        try:
            yield
        finally:
            self.acting, self.clock.actor = before

    def seam(self, name, owner, *, request=None, reply=None):
        """Pass a place where the fault of this step may strike."""
        fault = self.plan
        if fault is None or owner != self.acting or fault.seam != name:
            return
        fault.passed += 1
        if fault.passed != fault.nth:
            return
        if fault.effect in ("lose", "kill") and reply is not None:
            self.holders.reply_was_lost(request, reply)
        if fault.effect == "kill":
            raise Killed
        if fault.effect == "lose":
            raise lost()
        if fault.effect == "database":
            raise OperationalError("lost in the simulation")
        if fault.effect == "pause" and not connection.in_atomic_block:  # others have connections of their own
            for method, arguments in fault.steps:
                getattr(self, method)(**arguments)

    def _born(self, number):
        self.lives += 1
        return Stepped(self, number, self.lives)

    def killed(self, stepped):
        """Replace a worker that is gone."""
        self.stage.seen["killed"] += 1
        for held in (*stepped.slots.leaving, *stepped.slots.entries):
            self.invariants.waited_in_vain(held)
        self.workers[self.workers.index(stepped)] = self._born(stepped.number)

    # -- steps of workers

    @of_worker
    def claim(self, stepped, shard=None, limit=5):
        """Claim, judge and dispatch; by default everywhere."""
        stepped.claim(self.shards if shard is None else [self.shards[shard]], limit)

    @of_worker
    def take(self, stepped):
        """Claim everywhere and begin what was claimed."""
        stepped.claim(self.shards, 5)
        while stepped.slots.entries:
            stepped.begin()

    @of_worker
    def finish_running(self, stepped, ok=True):
        """End all tasks that run, record and settle."""
        while stepped.slots.begun:
            stepped.end(0, ok=ok)
        stepped.flush()

    @of_worker
    def begin(self, stepped, *, dies=False):
        """Start a task."""
        stepped.begin(dies=dies)

    @of_worker
    def end(self, stepped, index=0, ok=True):
        """End a task."""
        stepped.end(index, ok=ok)

    @of_worker
    def flush(self, stepped):
        """Record and settle."""
        stepped.flush()

    @of_worker
    def renew(self, stepped):
        """Renew leases."""
        stepped.renew()

    @of_worker
    def release(self, stepped):
        """Hand back what waits."""
        stepped.release()

    @of_worker
    def look(self, stepped):
        """Do what the loop does by itself at this time."""
        stepped.look(5)

    @of_worker
    def keep_up(self, stepped):
        """Do what the sweeping thread does by itself at this time."""
        stepped.keep_up()

    @of_worker
    def stop(self, stepped):
        """Tell a worker to end, which does not wait for what runs."""
        stepped.stop()
        self.killed(stepped)

    @step
    def kill(self, w=0):
        """End a process without a word."""
        if not self.workers[w].busy:
            self.killed(self.workers[w])

    @of_worker
    def work(self, stepped, ok=True):
        """Do everything that can be done now: claim everywhere, run, record."""
        stepped.claim(self.shards, 5)
        for _ in range(3):  # what waits to run alone begins only after the rest is recorded
            while stepped.slots.entries:
                stepped.begin()
            while stepped.slots.begun:
                stepped.end(0, ok=ok)
            stepped.flush()

    @of_worker
    def sweep(self, stepped, kind="delta"):
        """Sweep as `upkeep` does: `delta`, `full`, or `rebuild` of what was flushed."""
        alone = not any(other.busy for other in self.workers if other is not stepped)
        stepped.sweep(kind)
        if self.plan is None and alone and kind == "full":
            self.suspect = False
        if self.plan is None and kind != "rebuild":
            self.invariants.swept()

    def start(self, w=0, **how):
        """Claim everywhere, then start a task: two steps."""
        self.claim(w)
        self.begin(w, **how)

    def execute(self, w=0, **how):
        """Claim everywhere, start a task and end it: three steps."""
        self.start(w)
        self.end(w, **how)

    def flush_and_rebuild(self, w=0):
        """Flush Redis, and have a worker rebuild it: two steps."""
        self.flush_redis()
        self.sweep(w, "rebuild")

    def finish_one(self, w=0, **how):
        """End a task, then record and settle: two steps."""
        self.end(w, **how)
        self.flush(w)

    # -- the end

    @step
    def has_settled(self):
        """Check that no worker has anything left in Redis."""
        leases = [member for shard in self.view.shards.values() for member in shard.lease]
        if leases:
            raise Broken("R3 what was recorded is not settled", leases)

    def finish(self):
        """Let everything come to rest without further faults, then check that nothing is open, missing or left over."""
        for stepped in list(self.workers):
            self.killed(stepped)
        self.advance(5000)
        self.sweep(0)
        for _ in range(20):
            self.advance(self.config.lease_seconds * 1000 + 1)
            self.sweep(0, "full" if self.losses or self.unseen else "delta")
            self.work(0)
            for _ in range(50):
                if not self._due():
                    break
                self.work(0)
            if not self._due() and self.invariants.is_quiet():
                break
        self.look_back()
        self.sweep(0, "full")
        self.work(0)
        self.look_back(whole=True)

    @step
    def look_back(self, *, whole=False):
        """Check what must hold at the end; the `whole` of it after a full sweep only."""
        self.invariants.nothing_missing()
        if whole:
            self.invariants.at_end()

    def _due(self):
        now = self.clock.server_ms()
        return any(score <= now for shard in self.view.shards.values() for score in shard.due.values())
