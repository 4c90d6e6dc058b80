"""More short histories: those in which Redis, the database or a signal is lost, and those about runs and poison."""

from .faults import Fault
from .histories import LEASE_MS, due


def rolled_back_under_a_lease(world):
    """Redis falls back to before a claim; another one claims; the first one settles."""
    due(world, missed="all")
    world.snapshot()
    world.start(0)
    world.rollback()
    world.start(1)
    world.finish_one(0)


def flushed_without_a_rebuild(world):
    """An edit reaches a flushed shard, which must not be claimed from before it is rebuilt."""
    due(world)
    world.flush_redis()
    world.edit("a", missed="all")
    world.edit("a", every=7)
    world.advance(10_000)
    world.claim(0)


def disabled_and_flushed(world):
    """A schedule is switched off while its point is due, and Redis forgets both."""
    due(world)
    world.edit("a", enabled=False)
    world.flush_and_rebuild(0)


def overtaken_after_a_flush(world):
    """Redis forgets a lease; another one executes the point too and fails; then the first one ends."""
    due(world, max_attempts=3)
    world.start(0)
    world.flush_and_rebuild(1)
    world.start(1)
    world.finish_one(0, ok=False)
    world.finish_one(1)


def overtaken_after_a_retry(world):
    """One executes for longer than its lease; another takes over, fails, tries again; then the first one ends."""
    due(world, max_attempts=3)
    world.work(0, ok=False)
    world.advance(10_000)
    world.start(0)
    world.advance(LEASE_MS)
    world.start(1)
    world.finish_one(0)
    world.finish_one(1)


def edited_and_flushed(world):
    """Points are due when a schedule is edited, and Redis forgets them."""
    due(world, ms=35_000)
    world.edit("a", start_in=3)
    world.flush_and_rebuild(0)


def restored_with_a_far_point(world):
    """The database is restored from before an edit, which Redis has seen; the next edit gets the same generation."""
    world.create("a", every=3600)
    world.edit("a", missed="all")
    world.dump()
    world.advance(1000)
    world.edit("a", start_in=4000)
    world.restore()
    world.skew("web", -1)  # to the ms of the edit that was lost
    world.edit("a", missed="latest")


def deleted_under_a_run(world):
    """A schedule is deleted while it runs a second time, and its worker dies."""
    due(world, max_attempts=3)
    world.work(0, ok=False)
    world.advance(10_000)
    world.start(0)
    world.delete("a")
    world.kill(0)


def moved_while_it_runs(world):
    """A schedule moves to another queue while it runs; its next point is due before the run ends."""
    due(world, missed="all")
    world.start(0)
    world.edit("a", queue="mail")
    world.advance(10_000)
    world.claim(1, shard=2)
    world.begin(1)
    world.finish_one(0)


def moved_and_an_old_edit_arrives(world):
    """A late request puts a moved schedule back into its old queue, where it is due too."""
    world.create("a")
    world.edit("a", every=7)
    world.edit("a", queue="mail")
    world.late(1, script="upsert")
    world.advance(10_000)
    world.start(0)
    world.begin(0)


def deleted_when_due(world):
    """A schedule is deleted while its point is due and unclaimed."""
    due(world, seen=True)
    world.delete("a", fault=Fault("send:remove", "lose"))
    world.work(0)


def deleted_unseen(world):
    """A schedule with a far point is deleted where nobody mirrors."""
    world.create("a", every=3600)
    world.delete("a", seen=False)


def edit_unseen(world):
    """An edit does not reach Redis; the delta sweep brings it."""
    world.create("a", every=25)
    world.edit("a", every=7, fault=Fault("send:upsert", "lose"))
    world.advance(3000)
    world.sweep(0, "delta")


def edits_seen_late(world):
    """An edit to a denser interval reaches Redis when a point of the old one is due, and a second edit follows."""
    world.create("a")
    world.edit("a", every=7, fault=Fault("before_mirror", "lose"))
    world.advance(12_000)
    world.edit("a", start_in=20)
    world.work(0)


def order_while_it_runs(world):
    """An order is put into Redis once more while it runs."""
    world.create("a")
    world.order("a")
    world.advance(2500)
    for place in range(3):
        world.claim(0, place)
    world.begin(0)
    world.late(script="upsert")


def order_flushed(world):
    """Redis forgets an order."""
    world.create("a")
    world.order("a")
    world.advance(20_000)
    world.flush_redis()


def order_retrying_and_flushed(world):
    """An order waits for another attempt, and Redis forgets it."""
    world.create("a", every=3600, max_attempts=3, queue="mail")
    world.order("a")
    world.advance(1000)
    world.work(0, ok=False)
    world.flush_redis(shard=2)


def handed_over_and_killed(world):
    """A worker dies between the ledger and Redis when it hands over a run that may overlap."""
    due(world, overlap="allow")
    world.claim(0)
    world.flush(0, fault=Fault("send:upsert", "kill"))


def recorded_and_rolled_back(world):
    """Redis falls back to before a point was recorded: it is due there once more."""
    due(world)
    world.snapshot()
    world.work(0)
    world.rollback()
    world.work(1)


def retrying_edited_and_flushed(world):
    """A point waits for another attempt, the schedule is edited, Redis is flushed."""
    due(world, max_attempts=3)
    world.work(0, ok=False)
    world.edit("a", start_in=3)
    world.flush_and_rebuild(0)


def flushed_during_a_rebuild(world):
    """Redis is flushed again while it is being rebuilt."""
    world.create("a", every=3600)
    world.flush_redis()
    world.sweep(0, "rebuild", fault=Fault("during_rebuild", "pause", steps=[("flush_redis", {})]))


def flushed_between_two_marks(world):
    """Redis is flushed while a rebuild sets its marks; then all workers are restarted with another number of shards."""
    world.create("a", every=25)
    world.sweep(1, "rebuild", fault=Fault("reply:epoch", "pause", steps=[("flush_redis", {})]))
    world.reshard()


def flushed_during_a_full_sweep(world):
    """Redis is flushed again while a full sweep builds it."""
    world.create("a", every=3600)
    world.flush_redis()
    world.sweep(0, "full", fault=Fault("during_rebuild", "pause", steps=[("flush_redis", {})]))


def another_rebuilds_meanwhile(world):
    """A rebuild stands still until its mark is gone; Redis is flushed, another begins, and then the first goes on."""
    world.create("a", every=3600)
    world.flush_redis()
    late = Fault("send:upsert", "pause", steps=[("advance", {"ms": 16_000}), ("flush_redis", {"shard": 0})])
    others = [("advance", {"ms": 16_000}), ("sweep", {"w": 1, "kind": "rebuild", "fault": late})]
    world.sweep(0, "rebuild", fault=Fault("during_rebuild", "pause", steps=others))


def restored(world):
    """The database is restored from before an edit and before a point was recorded."""
    due(world, every=25)
    world.dump()
    world.edit("a", every=7)
    world.advance(10_000)
    world.work(0)
    world.restore()


def restored_and_ahead(world):
    """The database is restored from before some points were recorded; Redis stands behind them."""
    due(world)
    world.dump()
    world.work(0)
    world.advance(10_000)
    world.work(0)
    world.restore()
    world.advance(10_000)
    world.work(0)


def an_old_removal_after_a_restore(world):
    """A schedule is deleted, but the removal is delayed. The database is restored from before, another gets its key."""
    world.create("b", every=25)
    world.dump()
    world.create("a")
    for every in (7, 10, 7):
        world.edit("a", every=every)
    world.delete("a", fault=Fault("send:remove", "lose"))
    world.advance(1000)
    world.restore()
    world.create("a")
    world.sweep(0, "full")
    world.late(script="remove")


def swept_while_claimed(world):
    """A restored database has the sweep rewind a point which somebody claims meanwhile."""
    world.create("a")
    world.dump()
    world.advance(10_000)
    world.work(0)
    world.restore()
    world.advance(10_000)
    world.sweep(0, "full", fault=Fault("send:upsert", "pause", steps=[("claim", {"w": 1})]))


def restored_and_made_anew(world):
    """The database is restored from before a schedule; another one gets its key while a point of the first is due."""
    world.create("b", every=25)
    world.dump()
    due(world)
    world.restore()
    world.create("a")
    world.start(0)


def restored_under_a_run(world):
    """The database is restored from before a schedule while it runs, and another one gets its key."""
    world.create("b", every=25)
    world.dump()
    due(world)
    world.execute(0)
    world.snapshot()
    steps = [("recreate", {})]
    world.flush(0, fault=Fault("before_ledger", "pause", steps=steps))


def commit_without_a_reply(world):
    """The database commits outcomes, and nobody hears of it."""
    due(world)
    world.execute(0)
    world.flush(0, fault=Fault("after_ledger", "database"))
    world.advance(1000)
    world.flush(0)


def deleted_after_a_commit_without_a_reply(world):
    """The database commits an outcome, nobody hears of it, and the schedule is deleted before it is written again."""
    due(world)
    world.execute(0)
    world.flush(0, fault=Fault("after_ledger", "database"))
    world.delete("a")
    world.advance(1000)
    world.flush(0)


def handed_back(world):
    """An order waits behind others, is handed back as at a deploy, and then executed."""
    world.create("a", every=3600)
    for _ in range(5):
        world.order("a")
    world.advance(1000)
    world.claim(0)
    world.release(0)
    world.take(1)


def dies_again_and_again(world):
    """A task kills its process each time."""
    due(world)
    for number in range(6):
        world.claim(number % 3)
        world.flush(number % 3)
        world.begin(number % 3, dies=True)
        world.advance(LEASE_MS)


def dies_beside_others(world):
    """A task kills its process each time, and neighbours with it."""
    for name, queue in (("a", "default"), ("b", "default"), ("c", "default")):
        world.create(name, queue=queue)
    for _ in range(3):
        world.order("a")
    world.advance(10_000)
    for number in range(6):
        w = number % 3
        for _ in range(3):
            for place in range(2):
                world.claim(w, place)
            world.flush(w)
        for _ in range(6):
            world.begin(w)
        world.kill(w)
        world.advance(LEASE_MS)


def dies_beside_those_that_wait(world):
    """A process with more entries than slots dies twice: what only waited is not to blame."""
    world.create("a", every=3600)
    for _ in range(5):
        world.order("a")
    world.advance(1000)
    for w in range(2):
        for place in range(2):
            world.claim(w, place)
        world.flush(w)
        for _ in range(3):
            world.begin(w)
        world.kill(w)
        world.advance(LEASE_MS)
    for _ in range(6):
        for place in range(2):
            world.claim(2, place)
        world.flush(2)
        world.begin(2)
        world.finish_one(2)


def another_database(world):
    """Redis is flushed, and another database takes the prefix over."""
    due(world)
    world.work(0)
    world.foreign()
    world.work(0)
    world.sweep(0, "full")
    world.native()


def commit_without_a_reply_and_edited(world):
    """The reply to a COMMIT is lost, others go on, an edit follows; then the same outcome is recorded once more."""
    due(world, ms=35_000, missed="all")
    world.execute(0)
    world.flush(0, fault=Fault("after_ledger", "database"))
    world.advance(LEASE_MS)
    world.work(1)
    world.work(1)
    world.edit("a", start_in=3)
    world.advance(4000)
    world.flush(0)


def disabled_between_attempts_and_flushed(world):
    """A schedule is switched off while a point waits for another attempt and others are due; Redis forgets it."""
    due(world, max_attempts=3, missed="all", overlap="queue_all")
    world.work(0, ok=False)
    world.advance(20_000)
    world.edit("a", enabled=False)
    world.flush_redis()
    world.sweep(0, "full")


def newest_of_points_that_another_one_has(world):
    """Redis forgets who has a missed point while he judges; another one skips more of them, and runs a newer one."""
    due(world, ms=60_000)
    others = [
        ("flush_redis", {}),
        ("advance", {"ms": 10_000}),
        ("sweep", {"w": 1, "kind": "rebuild"}),
        ("take", {"w": 1}),
    ]
    world.claim(0, fault=Fault("after_judge", "pause", steps=others))
    world.begin(0)
    for w in (1, 0):
        world.end(w)
        world.flush(w)


def stretch_behind_a_lost_point(world):
    """Redis forgets who has a point; after a pause another one skips it, with what its holder would write."""
    due(world, ms=35_000, missed="all")
    world.edit("a", start_in=3)
    world.start(0)
    world.flush_and_rebuild(1)
    world.edit("a", enabled=False)
    world.work(1)
    world.finish_one(0)


def order_that_a_restore_took_back(world):
    """The database is restored to before an order, whose primary key the row of a due point gets then."""
    due(world, ms=30_001, queue="mail")
    world.start(2)
    world.dump()
    world.order("a")
    world.restore()
    world.edit("a", start_in=3)
    world.advance(LEASE_MS)
    world.start(0, dies=True)
    world.advance(LEASE_MS)
    world.work(1)


def skipped_late_by_an_old_holder(world):
    """Somebody skips a point and stands still; the next one finds a newer point to run, and is not refused for that."""
    due(world, ms=15_000, every=25, missed="skip", overlap="queue_all")
    world.advance(30_000)
    world.claim(0, fault=Fault("after_judge", "pause", steps=[("advance", {"ms": LEASE_MS}), ("take", {"w": 1})]))
    world.flush(0)
    world.finish_one(1)


def deleted_and_a_commit_without_a_reply(world):
    """A schedule is deleted while it runs; its holder is told so, and not that somebody else has won, also twice."""
    due(world)
    world.claim(0)
    world.advance(LEASE_MS)
    world.take(1)
    world.delete("a")
    world.end(1)
    world.flush(1, fault=Fault("after_ledger", "database"))
    world.advance(1000)
    world.flush(1)
