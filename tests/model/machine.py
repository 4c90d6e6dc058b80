"""Random histories: Hypothesis draws steps, faults in their midst, and what others do meanwhile.

Two modes. Strict: Redis loses nothing, edits are mirrored at once, nobody sweeps but after a move; so no enabled
schedule may be absent at any step. Lossy: everything is lost now and then, and the sweeps heal it.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .drawing import CHANGES, EVERY, INDEX, LEASE_MS, NAMES, POLICIES, QUEUES, TIMES, W, faults
from .world import World


def whoever(test):
    """Return a precondition: some worker passes the test."""
    return precondition(lambda self: any(test(stepped) for stepped in self.world.workers))


class Histories(RuleBasedStateMachine):
    """What both modes have in common. `stage` is set by the test."""

    stage = None
    lossy = False

    def __init__(self):
        super().__init__()
        self.world = World(self.stage)

    def pick(self, test, index):
        """Return the number of a worker that passes the test."""
        found = [stepped.number for stepped in self.world.workers if test(stepped)]
        return found[index % len(found)]

    @initialize(many=st.integers(1, 3), data=st.data())
    def begin_with(self, many, data):
        """Make some schedules."""
        for name in "abc"[:many]:
            self.world.create(name, every=data.draw(EVERY), queue=data.draw(QUEUES), **data.draw(POLICIES))

    # -- workers

    @rule(w=W, limit=st.sampled_from([1, 5]), fault=faults("claim"))
    def claim(self, w, limit, fault):
        """Claim, and wait."""
        self.world.claim(w, limit=limit, fault=fault)

    @rule(w=W, fault=faults("claim"))
    def take(self, w, fault):
        """Claim, and begin."""
        self.world.take(w, fault=fault)

    @whoever(lambda stepped: stepped.slots.entries)
    @rule(index=INDEX, dies=st.sampled_from([False, False, True]))
    def begin(self, index, dies):
        """Begin what waits."""
        self.world.begin(self.pick(lambda stepped: stepped.slots.entries, index), dies=dies)

    @whoever(lambda stepped: stepped.slots.begun)
    @rule(index=INDEX, ok=st.booleans())
    def end(self, index, ok):
        """End a task."""
        self.world.end(self.pick(lambda stepped: stepped.slots.begun, index), index, ok)

    @whoever(lambda stepped: stepped.unwritten)
    @rule(index=INDEX, fault=faults("flush"))
    def flush(self, index, fault):
        """Record and settle."""
        self.world.flush(self.pick(lambda stepped: stepped.unwritten, index), fault=fault)

    @rule(w=W, ok=st.booleans(), fault=faults("flush"))
    def work(self, w, ok, fault):
        """Do all that is due."""
        self.world.work(w, ok, fault=fault)

    @whoever(lambda stepped: stepped.slots.entries or stepped.slots.begun)
    @rule(index=INDEX, fault=faults("renew"))
    def renew(self, index, fault):
        """Renew."""
        self.world.renew(self.pick(lambda stepped: stepped.slots.entries or stepped.slots.begun, index), fault=fault)

    @whoever(lambda stepped: stepped.slots.entries)
    @rule(index=INDEX, fault=faults("release"))
    def release(self, index, fault):
        """Hand back."""
        self.world.release(self.pick(lambda stepped: stepped.slots.entries, index), fault=fault)

    @rule(w=W)
    def kill(self, w):
        """Kill."""
        self.world.kill(w)

    @rule(ms=TIMES)
    def advance(self, ms):
        """Let time go by."""
        self.world.advance(ms)

    @whoever(lambda stepped: stepped.slots.entries or stepped.slots.begun)
    @rule()
    def lapse(self):
        """Let all leases end."""
        self.world.advance(LEASE_MS + 1)

    # -- people

    @rule(name=NAMES, every=EVERY, queue=QUEUES, policies=POLICIES)
    def create(self, name, every, queue, policies):
        """Make a schedule."""
        self.world.create(name, every=every, queue=queue, **policies)

    @rule(name=NAMES, ahead=st.sampled_from([5, 20]))
    def create_once(self, name, ahead):
        """Make a one-off."""
        self.world.create(name, once_in=ahead)

    @rule(name=NAMES, changes=CHANGES)
    def change(self, name, changes):
        """Edit."""
        self.world.change(name, changes)

    @rule(name=NAMES, queue=QUEUES)
    def move(self, name, queue):
        """Move to another queue."""
        self.world.edit(name, queue=queue)

    @rule(name=NAMES)
    def delete(self, name):
        """Delete."""
        self.world.delete(name)

    @rule(name=NAMES)
    def order(self, name):
        """Run now."""
        self.world.order(name)

    @rule(w=W)
    def delta(self, w):
        """Follow moves."""
        self.world.sweep(w, "delta")

    @rule(back=st.integers(0, 20))
    def late(self, back):
        """Deliver an old request."""
        self.world.late(back)

    @rule(w=W, ms=st.sampled_from([-600_000, 600_000]))
    def skew_worker(self, w, ms):
        """Set a worker's wall clock."""
        self.world.skew(self.world.workers[w].name, ms)

    def teardown(self):
        """Come to rest, unless the history has ended with an error."""
        if not self.world.over:
            self.world.finish()


class Strict(Histories):
    """Redis loses nothing."""


class Lossy(Histories):
    """Redis, its clock, the database and the signals fail too."""

    lossy = True

    @rule(w=W, kind=st.sampled_from(["delta", "full", "rebuild"]), fault=faults("sweep", lossy=True))
    def sweep(self, w, kind, fault):
        """Sweep."""
        self.world.sweep(w, kind, fault=fault)

    @rule(w=W, ok=st.booleans(), fault=faults("flush", lossy=True))
    def work_lossy(self, w, ok, fault):
        """Do all that is due while Redis may be lost."""
        self.world.work(w, ok, fault=fault)

    @rule(w=W, fault=faults("claim", lossy=True))
    def take_lossy(self, w, fault):
        """Claim and begin while Redis may be lost."""
        self.world.take(w, fault=fault)

    @rule(name=NAMES, changes=CHANGES, fault=faults("web", lossy=True), seen=st.booleans())
    def change_missed(self, name, changes, fault, seen):
        """Edit; a signal may be missed."""
        self.world.change(name, changes, seen=seen, fault=fault)

    @rule(name=NAMES, seen=st.booleans(), fault=faults("web", lossy=True))
    def delete_missed(self, name, seen, fault):
        """Delete; a signal may be missed."""
        self.world.delete(name, seen=seen, fault=fault)

    @rule(name=NAMES, fault=faults("web", lossy=True))
    def order_missed(self, name, fault):
        """Run now; the member may not reach Redis."""
        self.world.unseen = True
        self.world.order(name, fault=fault)

    @rule(place=st.sampled_from([None, None, 0, 1]))
    def flush_redis(self, place):
        """Lose everything, or one shard."""
        self.world.flush_redis(place)

    @rule()
    def snapshot(self):
        """A replica falls behind."""
        self.world.snapshot()

    @precondition(lambda self: self.world.backup.keys)
    @rule()
    def rollback(self):
        """It takes over."""
        self.world.rollback()

    @rule()
    def dump(self):
        """Back up the database."""
        self.world.dump()

    @precondition(lambda self: self.world.backup.tables)
    @rule()
    def restore(self):
        """Restore it."""
        self.world.restore()

    @rule(ms=st.sampled_from([-40_003, -1003, 40_007]))
    def jump(self, ms):
        """Step the server's clock."""
        self.world.jump(ms)

    @rule()
    def skew_web(self):
        """Set the wall clock of the web processes forward. Back, edits would take effect later than they are made."""
        self.world.skew("web", 20_000)
