"""A real worker without threads; a history calls its rounds in any order: Note [Each activity is a round].

What is known of the worker's inside stands here and nowhere else in this folder: its rounds, its broker, and what it
hands to `Hand`.
"""

from functools import partial

from django.db import DatabaseError

from django_delayq import sync
from django_delayq.exceptions import BrokerError
from django_delayq.sync.layout import ForeignLayout, OtherLayout
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from django_delayq.worker.slots import Slots

#: So few, and so many claimed ahead, that some have to wait.
THREADS, AHEAD = 3, 2


class Hand(Slots):
    """In place of threads: keeps what was submitted until the history begins it, and what was begun until it ends."""

    def __init__(self, threads, call, report, traces):
        self.threads, self._call, self.report, self.telling = threads, call, report, 0
        self.entries, self.begun = [], []
        #: The monotonic second at which each began that runs.
        self.since = {}
        #: What was taken back and may not be handed back yet.
        self.leaving = []
        #: The most to be claimed now; whether what waits is to be handed back.
        self.most, self.stuck = 0, False
        #: What a free slot takes at once, and who is told of it.
        self.taken, self.noted = set(), lambda held: None
        #: Who is told of what waited for longer than its lease.
        self.in_vain = lambda held: None

    @property
    def waiting(self):
        """How many did not begin."""
        return len(self.entries)

    @property
    def running(self):
        """How many have begun."""
        return len(self.begun)

    @property
    def busy(self):
        """How many were submitted and have not ended."""
        return len(self.entries) + len(self.begun)

    def list_executing(self):
        """Return what runs, and since when."""
        return [(held, self.since[held]) for held in self.begun]

    @property
    def free(self):
        """How many would begin at once."""
        return max(0, self.threads - len(self.entries) - len(self.begun))

    def get_capacity(self):
        """How many to claim: some more than would begin at once, as after short tasks."""
        return max(0, min(self.most, self.threads + AHEAD - len(self.entries) - len(self.begun)))

    def is_stalled(self):
        """Say whether what waits is to be handed back, as behind tasks that take long."""
        return self.stuck

    def submit(self, items):
        """Keep these, and note which a free slot takes at once: they begin a moment later."""
        for held in items:
            if self.free:
                self.taken.add(held)
                self.noted(held)
            self.entries.append(held)

    def take_back(self):
        """Hand out what waits for a slot."""
        self.leaving = [held for held in self.entries if held not in self.taken]
        for held in self.leaving:
            if held.is_lapsed():  # its row is taken back only where nobody has taken it over
                self.in_vain(held)
        self.entries = [held for held in self.entries if held in self.taken]
        return list(self.leaving)

    def stop(self, timeout_seconds):
        """There is no thread to end."""
        return True


class Stepped:
    """One process of a worker. Killed, it is replaced by another of the next number."""

    def __init__(self, world, number, life):
        self.world = world
        self.number, self.life = number, life
        self.name = f"w{number}.{life}"
        #: In the middle of a step that another step interrupted.
        self.busy = False
        #: Everything that was ever begun.
        self.begun = []
        #: (place, fence) -> schedule -> generation at the claim; the same -> rows that had an outcome then.
        self.known, self.ended = {}, {}
        world.creating = self.name
        self.worker = Worker(WorkerOptions(queues=world.config.queues, threads=THREADS, name=self.name), slots=Hand)
        world.creating = "web"
        self.slots = self.worker.slots
        self.slots.noted = partial(world.invariants.counts, self)
        self.slots.in_vain = world.invariants.waited_in_vain

    # -- what it holds

    def lapsed(self, held):
        """Say whether the lease may be over, worked out here from what the package noted."""
        return held.lost or self.world.clock.monotonic() >= held.deadline

    def claimed_since_loss(self, place, fence):
        """Say whether Redis has lost nothing since the claim."""
        return (place, fence) in self.known and self.world.claims[place, fence] == self.world.losses

    def valid(self):
        """Yield place, member and fence of the leases that it may trust."""
        now = self.world.clock.monotonic()
        for (place, member), (fence, deadline) in self.world.holders.trusted.get(self.name, {}).items():
            if now < deadline and self.claimed_since_loss(place, fence):
                yield place, member, fence

    def has_begun(self, place, member, fence):
        """Say whether it ever began an execution under this lease."""
        leases = ((self.world.tag(held.shard), held.member, held.holder.partition(" ")[0]) for held in self.begun)
        return (place, member, fence) in leases

    @property
    def holds(self):
        """What it has claimed, up to its record."""
        recorder = self.worker.recorder
        return [*self.slots.entries, *self.slots.begun, *recorder._unrecorded, *recorder.locked]

    @property
    def has_work(self):
        """True while a task waits or runs here."""
        return bool(self.slots.entries or self.slots.begun)

    @property
    def unwritten(self):
        """True while something may wait to be recorded or settled."""
        return not self.worker.inbox.empty() or len(self.worker.keeper) > 0

    # -- steps

    def claim(self, places, limit):
        """Look at these places as after a hint, as far as there is room."""
        for place in places:
            self.worker.inbox.put((place, 0))
        self._round(limit)

    def look(self, limit):
        """Do what the loop does by itself now: claim where it is time, ask for heads, record."""
        self._round(limit)

    def begin(self, *, dies=False):
        """Start the task that waits for longest, as a slot does; `dies`: the task kills its process."""
        if not self.slots.entries:
            return
        held = self.slots.entries.pop(0)
        if held.is_lapsed():
            self.world.invariants.waited_in_vain(held)
            self.slots.report(held)
            return
        self.world.invariants.at_begin(self, held)
        self.slots.begun.append(held)
        self.slots.since[held] = self.world.clock.monotonic()
        self.begun.append(held)
        if dies:
            self.world.killed(self)

    def end(self, index, *, ok=True):
        """End a task that runs."""
        if self.slots.begun:
            held = self.slots.begun.pop(index % len(self.slots.begun))
            self.world.stage.ending = ok
            self.slots.execute(held)
            self.slots.report(held)

    def flush(self):
        """Record and settle what has ended, and start what waited for that."""
        self._round(0)

    def renew(self):
        """Renew all leases."""
        self.worker.keeper.run_round()

    def release(self):
        """Hand back what has not begun, as behind tasks that take long."""
        self.slots.stuck = True
        self._round(0)
        self.slots.stuck = False

    def take_layout(self):
        """Begin as a worker does after a restart with other settings; say whether it may go on."""
        try:
            sync.take_layout(self.worker.broker)
        except OtherLayout:
            return False
        sync.rebuild(self.worker.broker, self.worker.broker.list_shards())
        return True

    def sweep(self, kind):
        """Do a part of what the sweeping thread does, whether it is time or not; the look at the layout comes first."""
        try:
            self._sweep(kind, self.worker.broker)
        except ForeignLayout as error:
            self.worker.fail(error)
        except (BrokerError, DatabaseError):
            return

    def _sweep(self, kind, broker):
        sync.check_layout(broker)
        if kind == "delta":
            sync.sweep_delta(broker)
        elif kind == "full":
            sync.sweep_fully(broker)
        else:
            self.world.stage.seen["rebuilt"] += sync.rebuild(broker, self.worker.shards)

    def keep_up(self):
        """Do what the sweeping thread does now."""
        self.worker.upkeep.run_round()

    def stop(self):
        """Hand back what has not begun and end."""
        self.worker.stop()
        self.worker.drain()

    def _round(self, most):
        self.slots.most = most
        self.worker.run_round()
        self.slots.most, self.slots.leaving = 0, []
