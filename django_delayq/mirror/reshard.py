"""Moves a prefix to another number of shards while workers run.

Note [Changing the number of shards]
A member's shard follows from its name and the number of shards, so another number moves most members. Two workers that
count differently would look for a member in two shards; so the layout in Redis changes first, and with it each shard's
epoch: whoever works with the former number finds out at its next claim, or with its next heartbeat, refuses and drains.
What it still executes it records and settles where it was. Then each member leaves its former shard before it enters
its new one, as a schedule that is moved to another queue does: while it is leased it stays, so that no point is held in
two of them. Workers with the new number hand back what they find in a former shard, for it to be moved
(`worker/dispatch.py`). What is due waits for the end of its move, the work of a page.
The layout keeps the former numbers until all is moved. A move that was interrupted is finished by the next one; until
then what is on its way is brought back by the next full sweep of any worker, which the beginning of the move makes due,
and `delayq_status` tells what to do.

Note [Jobs enter before they leave]
A job has no row that could bring it back, so it enters its new shard before it leaves the former one: a move that is
interrupted leaves it in both, and the next one goes on. It is executed in the new one only: whoever counts as before
finds out at its claim and hands it back, and so do those who count anew with what they find in a former shard. What a
worker holds stays until that has ended; its result is moved like the others. Where the new shard has finished it
meanwhile, its result keeps it from being added once more.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from .. import chain, ledger
from ..broker import Broker, JobBroker, NewJob, Shard
from ..exceptions import ForgedJob, UnreadableJob
from ..grouping import grouped
from ..jobs import decode, is_member, sign_anew
from ..models.run import OPEN
from .compare import compare
from .durable import put_in_shards
from .layout import other_shards, store_layout
from .read import queues_of
from .rebuild import Build
from .runs import put_back
from .swept import sweep_now
from .write import remove_whole

logger = logging.getLogger("django_delayq.mirror")

#: How the holder of the upkeep lease begins while entries are moved to other shards.
RESHARD = "reshard:"
#: Between two looks at what is still leased.
PAUSE_SECONDS = 0.5


def reshard(
    broker: Broker,
    *,
    say: Callable[[str], object],
    at: Callable[[int, int], object] = lambda looked, of: None,
    pause: Callable[[float], object] = time.sleep,
) -> dict[str, int]:
    """Move everything to the number of shards that the settings say; return the members moved per queue.

    Waits for what is executed at this moment by workers that count differently. `say` is told what goes on, `at` after
    each page how many entries were looked at and of how many, about. See Note [Changing the number of shards].

    Raises:
        ForeignLayout: The prefix belongs to another database, or a queue that is not ours is in use: see `layout.py`.
        BrokerError: Redis failed on the way; the next call goes on.
    """
    former = other_shards(broker)
    if not former:
        return {}
    shards = [Shard(queue, number) for queue, count in former.items() for number in range(count)]
    build = Build(broker, broker.shards(former))  # first: a new worker must not find these shards flushed
    token = RESHARD + secrets.token_hex(8)
    broker.note_sweep(None)
    broker.seize_upkeep(token)
    store_layout(broker, former=former)
    broker.renew_epochs(shards)

    looked, of = 0, _count(broker, shards)

    def tell(checked: int) -> bool:
        at(looked + checked, of)
        return True

    def keep_marks(page: int = 0) -> None:
        nonlocal looked
        looked += page
        tell(0)
        build.go_on()
        broker.seize_upkeep(token)

    moved = dict.fromkeys(former, 0)
    try:
        while leased := sum(move(broker, shards, moved, keep_marks) for move in (_move_entries, _move_jobs)):
            say(f"{leased} are being executed where they were; waiting for their ends.")
            pause(PAUSE_SECONDS)
            looked = 0
            keep_marks()
        _move_results(broker, former)
        build.finish()
        broker.drop([shard for shard in shards if shard.number >= broker.config.shard_count(shard.queue)])
        store_layout(broker)
        sweep_now(broker, go_on=tell)
    finally:
        broker.end_upkeep(token)
    return moved


def under_way(broker: Broker) -> bool:
    """Say whether a move is being made; one that was killed counts until its lease ends.

    Raises:
        BrokerError: Redis does not answer.
    """
    return (broker.upkeep_holder() or "").startswith(RESHARD)


def _count(broker: Broker, shards: Sequence[Shard]) -> int:
    """Return how many entries there are to look at: schedules and runs twice, the second time by the sweep."""
    jobs = JobBroker(broker).counts(shards)
    members = sum(item.members for item in broker.stats(shards))
    return 2 * members + sum(map(sum, jobs))


def _move_entries(
    broker: Broker, shards: Sequence[Shard], moved: dict[str, int], keep_marks: Callable[[int], None]
) -> int:
    """Move the entries of schedules and runs, and count them in `moved`; return how many stay, being leased."""
    leased = 0
    for shard in shards:
        for page in broker.scan(shard):
            members = [member for member in sorted(page) if chain.parse_member(member) is not None]
            wrong = [member for member in members if broker.shard_of(member, shard.queue) != shard]
            if wrong:
                left = remove_whole(broker, shard, wrong)
                _enter(broker, left)
                moved[shard.queue] += len(left)
                leased += len(wrong) - len(left)
            keep_marks(len(page))
    return leased


def _enter(broker: Broker, members: list[str]) -> None:
    """Mirror what these members stand for, where it belongs."""
    parsed = [item for item in map(chain.parse_member, members) if item is not None]
    compare(broker, dict(queues_of(pk__in=[pk for kind, pk in parsed if kind == "s"])))
    runs = ledger.load_runs([pk for kind, pk in parsed if kind == "r"])
    put_back(broker, [run for run in runs.values() if run.status in OPEN])


def _move_jobs(
    broker: Broker, shards: Iterable[Shard], moved: dict[str, int], keep_marks: Callable[[int], None]
) -> int:
    """Move jobs that wait or are dead, and count them in `moved`; return how many stay, because a worker holds them."""
    jobs = JobBroker(broker)
    held = 0
    for shard in shards:
        for page in jobs.waiting(shard):
            wrong = {member: wake for member, wake in page if jobs.shard_of(member, shard.queue) != shard}
            left = _move_waiting(jobs, shard, wrong)
            moved[shard.queue] += left
            held += len(wrong) - left
            keep_marks(len(page))
        for page in jobs.dead(shard):
            moved[shard.queue] += _move_dead(jobs, shard, page)
            keep_marks(len(page))
    return held


def _move_results(broker: Broker, queues: Iterable[str]) -> None:
    jobs = JobBroker(broker)
    for queue in queues:
        for number, member in jobs.results(queue):
            shard = jobs.shard_of(member, queue)
            if shard.number != number:
                jobs.move_result(member, Shard(queue, number), shard)


def _move_waiting(jobs: JobBroker, shard: Shard, wakes: Mapping[str, int]) -> int:
    """Move jobs to their own shards; return how many have left this one. See Note [Jobs enter before they leave]."""
    views = jobs.views([(shard, member) for member in wakes])
    entering: list[NewJob] = []
    now_ms, left = jobs.broker.now_ms(), 0
    for (member, wake_ms), view in zip(wakes.items(), views, strict=True):
        if " " in view.holder and (view.waits_until_ms or 0) > now_ms:  # others are marked, and held by nobody
            continue
        if not view.payload or not is_member(member):
            logger.error("Dropped from %s: %r, which is no job.", shard, member[:100])
            left += jobs.change(shard, member, "leave") in ("OK", "GONE")
            continue
        text = sign_anew(shard.queue, member, view.payload)
        entering.append(NewJob(member, wake_ms, *_labels(jobs, shard, member, text), text))
    _enter_jobs(jobs, grouped(entering, lambda job: jobs.shard_of(job.member, shard.queue)))
    return left + sum(jobs.change(shard, job.member, "leave") in ("OK", "GONE") for job in entering)


def _labels(jobs: JobBroker, shard: Shard, member: str, payload: str) -> tuple[int, str]:
    """Return the priority and the unique key of a job; what Redis has of them where its text cannot be read here."""
    try:
        _, call, _ = decode(shard.queue, member, payload)
    except (ForgedJob, UnreadableJob):
        return jobs.labels(shard, member)
    return call.priority, "" if call.durable else call.unique  # a durable one's is guarded by the database


def _enter_jobs(jobs: JobBroker, groups: Mapping[Shard, Sequence[NewJob]]) -> None:
    """Add jobs to their shards. Where two of one key wait, the first one keeps it."""
    standing = put_in_shards(jobs, groups, again=True)
    refused = {
        shard: [job._replace(unique="") for job in group if standing[job.member] not in ("", job.member)]
        for shard, group in groups.items()
    }
    if any(refused.values()):
        put_in_shards(jobs, refused, again=True)


def _move_dead(jobs: JobBroker, shard: Shard, page: list[tuple[str, int]]) -> int:
    wrong = [(member, died) for member, died in page if jobs.shard_of(member, shard.queue) != shard]
    for (member, died_ms), view in zip(wrong, jobs.views([(shard, member) for member, _ in wrong]), strict=True):
        text = sign_anew(shard.queue, member, view.payload)
        jobs.entomb(jobs.shard_of(member, shard.queue), member, died_ms, text)
        jobs.change(shard, member, "bury")
    return len(wrong)
