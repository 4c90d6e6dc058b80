"""Short histories, each of the kind that breaks the protocol where one rule is missing.

`a` is due every 10 s, first at 10 s. Played without a mutant, every one of them must come to a good end.
"""

from .faults import Fault

LEASE_MS = 30_000
LAPSE = ("advance", {"ms": LEASE_MS + 1})


def due(world, ms=15_000, **values):
    """Make `a` and let its first point fall due."""
    world.create("a", **values)
    world.advance(ms)


def recorded_in_time(world):
    """The plainest history."""
    due(world)
    world.start(0)
    world.finish_one(0)


def recorded_late(world):
    """Some points fall due while the first one is executed; each of them is to run."""
    due(world, overlap="queue_all", missed="all")
    world.start(0)
    for _ in range(3):
        world.advance(10_000)
        world.renew(0)
    world.finish_one(0)


def claimed_late(world):
    """A point is claimed long after it fell due."""
    due(world, ms=60_000)
    world.start(0)
    world.start(1)


def overtaken_before_settling(world):
    """One records, stands still past its lease, another goes on with the next point; then the first one settles."""
    due(world, missed="all")
    world.execute(0)
    others = [LAPSE, ("work", {"w": 1}), ("claim", {"w": 1}), ("begin", {"w": 1})]
    world.flush(0, fault=Fault("after_ledger", "pause", steps=others))


def overtaken_in_the_task(world):
    """One executes for longer than its lease, another takes over; the first one ends while the second one executes."""
    due(world, missed="all")
    world.start(0)
    world.advance(LEASE_MS + 1)
    world.start(1)
    world.finish_one(0)
    world.finish_one(1)


def stopped_before_judging(world):
    """One stands still between claim and judgement, another takes over and executes; then the first one judges."""
    due(world)
    others = [LAPSE, ("claim", {"w": 1}), ("begin", {"w": 1})]
    world.claim(0, fault=Fault("after_claim", "pause", steps=others))
    world.begin(0)
    world.finish_one(1)


def stopped_before_judging_a_paused_one(world):
    """One stands still after its claim; another takes over and executes; then it is paused. The first has no say."""
    due(world)
    others = [LAPSE, ("claim", {"w": 1}), ("begin", {"w": 1}), ("edit", {"name": "a", "enabled": False})]
    world.claim(0, fault=Fault("after_claim", "pause", steps=others))
    world.flush(0)


def waits_past_its_lease(world):
    """An entry waits for a slot until its lease is over; it is taken over, and only then does a slot take it."""
    due(world)
    world.claim(0)
    world.advance(LEASE_MS)
    world.start(1)
    world.begin(0)


def slow_reply(world):
    """The reply to a claim takes half a lease; the entry waits until the lease is over by the server's clock."""
    due(world)
    world.claim(0, fault=Fault("reply:claim", "pause", steps=[("advance", {"ms": LEASE_MS // 2})]))
    world.advance(LEASE_MS // 2)
    world.start(1)
    world.begin(0)


def late_settlement_of_another(world):
    """A settlement is lost on its way and arrives when another one holds the member."""
    due(world, missed="all")
    world.execute(0)
    world.flush(0, fault=Fault("send:settle", "lose"))
    world.advance(LEASE_MS)
    world.claim(1)
    world.late(script="settle", w=0)


def late_renewal(world):
    """A renewal is lost on its way and arrives when another one holds the member."""
    due(world)
    world.claim(0)
    world.renew(0, fault=Fault("send:renew", "lose"))
    world.advance(LEASE_MS)
    world.claim(1)
    world.advance(1000)
    world.late(script="renew", w=0)


def late_renewal_of_nothing(world):
    """A renewal is lost on its way and arrives after the schedule was removed."""
    due(world)
    world.claim(0)
    world.renew(0, fault=Fault("send:renew", "lose"))
    world.begin(0)
    world.delete("a")
    world.finish_one(0)
    world.late(script="renew", w=0)


def late_release(world):
    """A release of what waits is lost on its way and arrives when another one executes it."""
    world.create("a", every=3600)
    for _ in range(5):
        world.order("a")
    world.advance(1000)
    world.claim(0)
    world.release(0, fault=Fault("send:release", "lose"))
    world.advance(LEASE_MS)
    world.take(1)
    world.late(script="settle", w=0)


def late_retry(world):
    """A retry is lost on its way and arrives when another one executes."""
    due(world, max_attempts=3)
    world.execute(0, ok=False)
    world.flush(0, fault=Fault("send:retry", "lose"))
    world.advance(LEASE_MS)
    world.start(1)
    world.late(script="settle", w=0)


def claim_without_a_reply(world):
    """The reply to a claim is lost; the next claim brings it again."""
    due(world)
    world.claim(0, fault=Fault("reply:claim", "lose"))
    world.advance(1000)
    world.start(0)
    world.finish_one(0)


def claim_without_a_reply_and_late_repetition(world):
    """The reply to a claim is lost; when the claim is repeated, another one holds the member for its next point."""
    due(world, missed="all")
    world.claim(0, fault=Fault("reply:claim", "lose"))
    world.advance(LEASE_MS)
    world.work(1)
    world.start(2)
    world.claim(0)


def old_claim_arrives(world):
    """A claim arrives once more after its process has made another one."""
    world.create("a")
    world.create("b", every=11)
    world.advance(10_000)
    world.work(0)
    world.advance(1000)
    world.claim(0)
    world.advance(10_000)
    for back in range(9):
        world.late(back, script="claim", w=0)


def two_points_in_one_ms(world):
    """One claims and settles; in the same ms another one claims the next point, and the first one settles again."""
    due(world, ms=25_000, missed="all")
    world.work(0)
    world.claim(1)
    world.late(script="settle", w=0)


def settled_later(world):
    """A worker that goes on settles again what Redis did not take, so that no other takes it over."""
    due(world)
    world.execute(0)
    world.flush(0, fault=Fault("send:settle", "lose"))
    for _ in range(4):
        world.advance(2000)
        world.flush(0)
    world.has_settled()


def killed_before_settling(world):
    """A worker dies between ledger and Redis; another one finds the point decided."""
    due(world, missed="all")
    world.execute(0)
    world.flush(0, fault=Fault("send:settle", "kill"))
    world.advance(LEASE_MS)
    world.work(1)


def claimed_by_a_fast_clock(world):
    """A worker whose clock is ahead claims a point in time."""
    due(world)
    world.skew_worker(0, 600_000)
    world.work(0)


def edited_between_ledger_and_redis(world):
    """A schedule becomes denser after its point was recorded and before it is settled."""
    due(world, every=25, ms=25_000)
    world.execute(0)
    world.flush(0, fault=Fault("after_ledger", "pause", steps=[("edit", {"name": "a", "every": 7})]))


def edited_when_due(world):
    """A schedule is edited while its point is due and unclaimed: that point still runs once."""
    due(world)
    world.edit("a", every=7)
    world.work(0)


def edited_between_attempts(world):
    """A schedule is edited while its point waits for another attempt."""
    due(world, max_attempts=3)
    world.work(0, ok=False)
    world.edit("a", missed="all")
    world.work(0)


def ended_when_due(world):
    """A schedule gets an end in the past while its point is due and unclaimed."""
    due(world)
    world.edit("a", end_in=-1)
    world.work(0)


def newest_killed(world):
    """The newest of missed points runs at once, and kills its process."""
    due(world, ms=60_000)
    world.start(0, dies=True)
    world.advance(LEASE_MS)
    world.work(1)


def newest_fails(world):
    """The newest of missed points runs at once and fails; a sweep comes by before its next attempt."""
    due(world, ms=60_000, max_attempts=3)
    world.start(0)
    world.finish_one(0, ok=False)
    world.sweep(1, "full")
    world.work(1)
    world.advance(8000)
    world.work(1, ok=False)


def newest_taken_over_and_edited(world):
    """The newest of missed points is taken over, and waits for a slot; an edit comes before it begins."""
    world.create("b", every=3600)
    for _ in range(3):
        world.order("b")
    world.take(0)
    due(world, ms=28_000)
    world.renew(0)
    world.claim(1)
    world.kill(1)
    for ms in (28_000, 5000):
        world.advance(ms)
        world.renew(0)
    world.claim(0)
    world.edit("a", start_in=3)
    world.finish_one(0)


def newest_handed_back(world):
    """The newest of missed points waits for a slot, and is handed back."""
    for name in "abc":
        world.create(name, queue="mail")
        world.order(name)
    world.claim(0, 2)
    for _ in range(2):
        world.advance(28_000)
        world.renew(0)
    world.claim(0, 2)
    world.release(0)


def edited_while_later_ones_fell_due(world):
    """A task takes longer than the interval; before it ends, the schedule is edited."""
    due(world, ms=10_000)
    world.start(0)
    world.advance(25_000)
    world.edit("a", start_in=3)
    world.finish_one(0)


def edited_twice_while_later_ones_fell_due(world):
    """A task takes longer than the interval; before it ends, the schedule is edited twice."""
    due(world, ms=35_000)
    world.edit("a", every=25)
    world.advance(1000)
    world.start(0)
    world.advance(25_000)
    world.edit("a", start_in=3)
    world.advance(25_000)
    world.edit("a", start_in=3)
    world.finish_one(0)


def disabled_before_it_was_settled(world):
    """A worker dies between ledger and Redis; the next point falls due, and the schedule is switched off."""
    due(world)
    world.execute(0)
    world.flush(0, fault=Fault("send:settle", "kill"))
    world.advance(10_000)
    world.edit("a", enabled=False)


def disabled_between_attempts(world):
    """A schedule is switched off while its point waits for another attempt."""
    due(world, max_attempts=3)
    world.work(0, ok=False)
    world.edit("a", enabled=False)


def edited_while_it_runs(world):
    """A schedule is edited while it runs."""
    due(world)
    world.start(0)
    world.edit("a", every=7)
    world.advance(10_000)
    world.start(1)


def disabled_when_due(world):
    """A schedule is switched off while some of its points are due and unclaimed."""
    due(world)
    world.edit("a", enabled=False)
    world.work(0)


def disabled_after_an_edit(world):
    """Points of an older definition are due when a schedule is switched off."""
    due(world, ms=35_000)
    world.edit("a", start_in=100)
    world.edit("a", enabled=False)


def disabled_and_moved(world):
    """A schedule that is switched off while its point is due moves to another queue."""
    due(world)
    world.edit("a", enabled=False)
    world.edit("a", queue="mail")


def edited_and_overlapping(world):
    """A point of a schedule that may overlap was due at an edit."""
    due(world, overlap="allow", ms=35_000)
    world.edit("a", start_in=15)
    world.work(0)


def late_after_an_edit(world):
    """Points of two definitions are missed: the older one's are explained, the newer one's are not explained twice."""
    due(world, ms=35_000)
    world.edit("a", start_in=3)
    world.advance(LEASE_MS)
    world.work(0)


def an_old_edit_arrives(world):
    """The mirroring of an edit is delayed until a later one is done."""
    world.create("a")
    world.edit("a", every=25)
    world.edit("a", every=7)
    world.late(1, script="upsert")


def an_old_removal_arrives(world):
    """A schedule moves away and back; the removal from the first queue comes once more."""
    world.create("a")
    world.edit("a", queue="mail")
    world.edit("a", queue="default")
    world.late(1, script="remove")


def edited_twice_while_it_runs(world):
    """A task runs while its schedule gets a new recurrence, which has a point, and is switched off."""
    due(world, ms=30_001, every=25, missed="all")
    world.start(0)
    world.edit("a", start_in=3)
    world.advance(10_000)
    world.edit("a", enabled=False)
    world.finish_one(0)


def edited_twice_while_it_is_handed_over(world):
    """The same of points that overlap, of which the first definition had left something too."""
    due(world, ms=30_001, every=7, missed="all", overlap="allow")
    world.edit("a", every=10)
    world.claim(0)
    world.edit("a", start_in=3)
    world.advance(4000)
    world.edit("a", enabled=False)
    world.flush(0)


def paused_while_it_moves(world):
    """A schedule is paused before it has left its former queue, where a point waits for another attempt."""
    due(world, max_attempts=3, missed="all")
    world.start(0)
    world.edit("a", queue="mail")
    world.finish_one(0, ok=False)
    world.edit("a", enabled=False)
