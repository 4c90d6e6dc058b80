"""A real worker without its threads: the history takes each of its steps. `Slots` alone is replaced, by a list."""

from functools import partial

from django.db import DatabaseError

from django_delayq import mirror
from django_delayq.exceptions import BrokerError, ForeignLayout
from django_delayq.worker import Worker, WorkerOptions
from django_delayq.worker.entry import Finished

#: So few, and so many claimed ahead, that some have to wait.
THREADS, AHEAD = 3, 2


class InOrder(dict):
    """A set that is gone through in the order of its making, so that a history can be played again."""

    def update(self, items):
        """Add these."""
        super().update(dict.fromkeys(items))

    def difference_update(self, items):
        """Take these away."""
        for item in items:
            self.pop(item, None)


class Waiting:
    """In place of the slots: keeps what was submitted until the history begins it."""

    def __init__(self, threads, call, report):
        self.threads, self.call, self.report = threads, call, report
        self.entries = []
        #: What was begun and not ended.
        self.begun = []
        #: What a free slot takes at once, and who is told of it.
        self.taken, self.noted = set(), lambda held: None

    @property
    def waiting(self):
        """How many did not begin."""
        return len(self.entries)

    @property
    def free(self):
        """How many would begin at once."""
        return max(0, self.threads - len(self.entries) - len(self.begun))

    def capacity(self):
        """How many to claim: some more than would begin at once, as after short tasks."""
        return max(0, self.threads + AHEAD - len(self.entries) - len(self.begun))

    def nothing_ended(self, *, waited):
        """No thread sleeps here."""

    def submit(self, held, task):
        """Keep it, or note that a free slot takes it at once: it begins a moment later."""
        if self.free:
            self.taken.add(held)
            self.noted(held)
        self.entries.append((held, task))

    def take_back(self):
        """Hand out what waits for a slot."""
        waiting = [held for held, _ in self.entries if held not in self.taken]
        self.entries = [(held, task) for held, task in self.entries if held in self.taken]
        return waiting


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
        #: fence -> schedule -> generation at the claim; fence -> losses of Redis until then.
        self.known, self.losses = {}, {}
        world.creating = self.name
        self.worker = Worker(WorkerOptions(queues=world.config.queues, threads=THREADS, name=self.name))
        world.creating = "web"
        self.worker.keeper._held = InOrder()
        self.slots = self.worker.slots
        self.slots.noted = partial(world.invariants.counts, self)

    # -- what it holds

    def lapsed(self, held):
        """Say whether the lease may be over, worked out here from what the package noted."""
        return held.lost.is_set() or self.world.clock.monotonic() >= held.deadline

    def claimed_since_loss(self, held):
        """Say whether Redis has lost nothing since the claim."""
        return self.losses.get(held.fence) == self.world.losses

    def valid(self):
        """Return the leases that it holds and may trust."""
        held = sorted(self.worker.keeper._held, key=lambda held: held.member)
        return [item for item in held if not self.lapsed(item) and self.claimed_since_loss(item)]

    @property
    def unwritten(self):
        """True while something waits to be recorded or settled."""
        return not (self.worker.inbox.empty() and self.worker.recorder.idle)

    # -- steps

    def claim(self, place, limit):
        """Ask for due members and set them on their way, as far as there is room."""
        room = min(limit, self.worker.dispatcher.capacity())
        if room > 0 and not self.worker.stopping:
            self.worker.claims.claim(place, room)

    def begin(self, *, dies=False):
        """Start the task that waits for longest, as a slot does; `dies`: the task kills its process."""
        if not self.slots.entries:
            return
        held, task = self.slots.entries.pop(0)
        if held.lapsed():
            self.world.invariants.waited_in_vain(held)
            self.slots.report(Finished(held, 0.0, started=False))
            return
        self.world.invariants.at_begin(self, held)
        self.slots.begun.append((held, task))
        self.begun.append(held)
        if dies:
            self.world.killed(self)

    def end(self, index, *, ok=True):
        """End a task that runs."""
        if self.slots.begun:
            item = self.slots.begun.pop(index % len(self.slots.begun))
            self.world.stage.ending = ok
            self.slots.report(self.slots.call(*item))

    def flush(self):
        """Record and settle what has ended, and start what waited for that."""
        self.worker._wait(0)
        self.worker._flush()
        self.worker.dispatcher.go_on()

    def renew(self):
        """Renew all leases, as the keeper's thread does."""
        try:
            self.worker.keeper.renew_all()
        except BrokerError:
            self.worker.keeper._expire()

    def release(self):
        """Hand back what has not begun, as at the beginning of a drain."""
        self.worker.dispatcher.release_all()

    def sweep(self, kind):
        """Do what the sweeping thread does, after the look at the layout that comes first there."""
        try:
            self._sweep(kind, self.worker.broker)
        except ForeignLayout as error:
            self.worker.fail(error)
        except (BrokerError, DatabaseError):
            return

    def _sweep(self, kind, broker):
        mirror.check_layout(broker)
        if kind == "delta":
            mirror.delta_sweep(broker)
        elif kind == "full":
            mirror.full_sweep(broker)
        else:
            epochs = broker.epochs(self.worker.places)
            missing = [place for place, epoch in zip(self.worker.places, epochs, strict=True) if epoch is None]
            self.world.stage.seen["rebuilt"] += mirror.rebuild(broker, missing)
