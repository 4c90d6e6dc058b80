"""Short histories of jobs: each breaks a promise where one rule is missing. See histories.py."""

from functools import partial

from .faults import Fault
from .histories import LAPSE, LEASE_MS

#: A web process dies after its COMMIT and before Redis hears of it.
killed = partial(Fault, "before_mirror", "kill")


def executed(world):
    """The plainest history of a job."""
    world.enqueue(calls=True)
    world.work(0)
    world.work(0)


def claimed_with_orders(world):
    """More orders and jobs are due than a claim takes."""
    world.create("a", every=3600, queue="mail")
    for _ in range(8):
        world.order("a")
    world.enqueue(queue="mail", ahead=500, priority=2)  # so that members have turns
    world.enqueue(queue="mail", many=8)
    world.claim(0, 2)
    world.begin(0)


def urgent_behind_many(world):
    """An urgent job comes after more jobs than a claim takes."""
    world.enqueue(queue="mail", many=8)
    world.advance(1000)
    world.enqueue(queue="mail", priority=2)
    world.claim(0, 2)


def urgent_among_few(world):
    """An urgent job comes last of those that a claim could take if nothing else was due."""
    world.create("a", every=3600, queue="mail")
    for _ in range(5):
        world.order("a")
    world.enqueue(queue="mail", many=3)
    world.enqueue(queue="mail", ahead=5, priority=2)
    world.advance(6000)
    world.claim(0, 2)


def released_and_urgent(world):
    """An urgent job is handed back while it is due."""
    world.enqueue(queue="mail", many=4, priority=2)
    world.claim(0, 2)
    world.release(0)


def deleted_when_its_turn_has_come(world):
    """A schedule is deleted when it and more orders than a claim takes are due."""
    world.enqueue(queue="mail", ahead=500, priority=2)  # so that members have turns
    world.create("a", queue="mail", missed="all")
    for _ in range(8):
        world.order("a")
    world.advance(11_000)
    world.claim(0, 2, limit=1)
    world.delete("a")


def committed_and_killed(world):
    """A web process dies between COMMIT and Redis."""
    world.enqueue(fault=killed())
    world.advance(3000)
    world.sweep(0, "delta")


def committed_late(world):
    """A transaction is open while others commit later keys; its process dies after its COMMIT."""
    world.enqueue(how="open")
    world.enqueue()
    world.sweep(0, "delta")
    world.commit(dies=True)
    world.advance(3000)
    world.sweep(0, "delta")


def committed_after_a_flush(world):
    """Redis is flushed and rebuilt while a transaction is open; its process dies after its COMMIT."""
    world.enqueue(how="open")
    world.enqueue()
    world.flush_and_rebuild(0)
    world.sweep(0, "delta")
    world.commit(dies=True)
    world.sweep(0, "delta")


def retrying_and_flushed(world):
    """A job waits for another attempt, and Redis is flushed and rebuilt."""
    world.enqueue(attempts=3)
    world.work(0, ok=False)
    world.flush_and_rebuild(0)
    world.sweep(0, "delta")


def moved_and_killed(world):
    """A web process dies after it has moved a job to later in the database, and before it has in Redis."""
    world.enqueue(ahead=5)
    world.reschedule(ahead=200, fault=killed())
    world.advance(61_000)
    world.start(0)
    world.advance(150_000)


def moved_while_a_worker_has_it(world):
    """A job is moved that a worker has."""
    world.enqueue()
    world.claim(0)
    world.reschedule(ahead=10)


def cancelled_while_a_worker_has_it(world):
    """A job is cancelled that a worker has."""
    world.enqueue()
    world.claim(0)
    world.cancel()


def cancelled_before_it_is_put(world):
    """A job that was not put is cancelled at the moment at which a sweep puts it and a worker takes it."""
    world.enqueue(fault=killed())
    others = [("sweep", {"w": 1}), ("take", {"w": 1})]
    world.cancel(fault=Fault("reply:upsert", "pause", steps=others))


def cancelled_and_killed(world):
    """A web process dies after it has cancelled a job in the database, and before it has in Redis."""
    world.enqueue(unique="k")
    world.cancel(fault=killed())
    world.advance(61_000)
    world.start(0)


def removed_late(world):
    """A job is cancelled and retried; what takes it out of Redis comes once more, and late."""
    world.enqueue()
    world.sweep(0, "delta")
    world.cancel()
    world.retry()
    world.late(script="remove")
    world.suspect = False
    world.sweep(0, "delta")


def cancelled_with_a_key(world):
    """A job with a unique key is cancelled; another one may have the key then."""
    world.enqueue(unique="k")
    world.cancel()
    world.enqueue(unique="k")


def enqueued_twice(world):
    """Two jobs are to have one unique key."""
    world.enqueue(unique="k")
    world.enqueue(unique="k", many=3)


def started_with_a_key(world):
    """A job gives its unique key up when it starts."""
    world.enqueue(unique="k")
    world.claim(0)
    world.enqueue(unique="k")
    world.begin(0)


def tried_again_with_a_key(world):
    """A job that keeps its unique key until it has ended is tried again."""
    world.enqueue(unique="k", until="end", attempts=3)
    world.work(0, ok=False)
    world.enqueue(unique="k", until="end")
    world.advance(10_000)
    world.start(0)


def ended_with_a_key(world):
    """A job that keeps its unique key until it has ended has ended."""
    world.enqueue(unique="k", until="end")
    world.work(0)
    world.enqueue(unique="k", until="end")


def retried_with_a_key(world):
    """A job that has failed is retried, and has its unique key again."""
    world.enqueue(unique="k", until="end")
    world.work(0, ok=False)
    world.retry()
    world.enqueue(unique="k")


def retried(world):
    """A job that has failed three times is retried, and fails once more."""
    world.enqueue(attempts=3)
    for _ in range(3):
        world.work(0, ok=False)
        world.advance(30_000)
    world.retry()
    world.work(0, ok=False)


def retried_before_it_was_settled(world):
    """A job has failed, and is retried before the worker gives it back to Redis."""
    world.enqueue()
    world.sweep(1, "delta")
    world.execute(0, ok=False)
    world.flush(0, fault=Fault("after_ledger", "pause", steps=[("retry", {})]))


def retried_beside_an_old_execution(world):
    """Redis forgets who executes a job, which is cancelled and retried then; the execution ends."""
    world.enqueue()
    world.start(0)
    world.flush_and_rebuild(1)
    world.cancel()
    world.retry()
    world.finish_one(0)


def kept_for_a_while(world):
    """What failed is kept for as long as the options say, and no longer; what succeeded not at all."""
    world.enqueue(alias="brief", many=2)
    world.start(0)
    world.begin(0)
    world.end(0, ok=False)
    world.finish_one(0)
    world.sweep(0, "full")
    world.advance(50_000)


def kept(world):
    """An outcome is there after a sweep."""
    world.enqueue()
    world.work(0)
    world.sweep(0, "full")


def killed_before_the_callback(world):
    """A worker dies after an outcome is committed, and before anything else."""
    world.enqueue(calls=True)
    world.execute(0)
    world.flush(0, fault=Fault("after_ledger", "kill"))


def callback_without_a_reply(world):
    """The database commits an outcome and its callback, and nobody hears of it."""
    world.enqueue(calls=True)
    world.execute(0)
    world.flush(0, fault=Fault("after_ledger", "database"))
    world.advance(1000)
    world.flush(0)


def callback_not_put(world):
    """A worker dies after it has settled a job, and before it has put its callback."""
    world.enqueue(calls=True)
    world.execute(0)
    world.flush(0, fault=Fault("after_settle", "kill"))
    world.sweep(1, "delta")


def overtaken_job(world):
    """A job is executed for longer than its lease, another worker takes over; then the first execution ends."""
    world.enqueue()
    world.start(0)
    world.advance(LEASE_MS + 1)
    world.start(1)
    world.finish_one(0)
    world.finish_one(1)


def job_dies_again_and_again(world):
    """A job kills its process each time."""
    world.enqueue(calls=True)
    for number in range(6):
        world.claim(number % 3)
        world.flush(number % 3)
        world.begin(number % 3, dies=True)
        world.advance(LEASE_MS)


def claimed_for_another_row(world):
    """A worker stands still after its claim; the database is restored, and another job gets the key."""
    world.dump()
    world.enqueue()
    world.claim(0, fault=Fault("after_claim", "pause", steps=[("recreate", {"what": "job"})]))
    world.begin(0)


def settled_for_another_row(world):
    """The database is restored, and a job gets the key of one that is due in Redis, where it was not put."""
    world.dump()
    world.enqueue()
    world.sweep(0, "delta")
    world.restore()
    world.advance(1000)
    world.enqueue(fault=killed())
    world.work(0)
    world.suspect = False
    world.sweep(0, "delta")


def executed_for_another_row(world):
    """The database is restored while a job is executed, and another job gets its key."""
    world.dump()
    world.enqueue()
    world.execute(0)
    world.flush(0, fault=Fault("before_ledger", "pause", steps=[("recreate", {"what": "job"})]))


def far_ahead_in_place_of_another_row(world):
    """The database is restored, and a job gets the key of one that Redis still has, for later; Redis is not told."""
    world.dump()
    world.enqueue(ahead=40)
    world.restore()
    world.advance(1000)
    world.enqueue(fault=killed())
    world.sweep(0, "full")


def resharded(world):
    """The number of shards changes while a job is executed and others wait."""
    world.enqueue(many=5)
    world.enqueue(ahead=40, many=3)
    world.take(0)
    world.reshard(3)


def stopped_before_judging_a_job(world):
    """One stands still between claim and judgement, another takes over and executes; then the first one judges."""
    world.enqueue()
    world.claim(0, fault=Fault("after_claim", "pause", steps=[LAPSE, ("claim", {"w": 1}), ("begin", {"w": 1})]))
    world.begin(0)
    world.finish_one(1)
