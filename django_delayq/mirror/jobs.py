"""Moves jobs to the shards where they belong, while the number of shards changes. See `reshard.py`.

Note [Jobs enter before they leave]
A job has no row that could bring it back, so it enters its new shard before it leaves the former one: a move that is
interrupted leaves it in both, and the next one goes on. It is executed in the new one only: whoever counts as before
finds out at its claim and hands it back, and so do those who count anew with what they find in a former shard. What a
worker holds stays until that has ended; its result is moved like the others. Where the new shard has finished it
meanwhile, its result keeps it from being added once more.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from ..broker import Broker, JobBroker, NewJob, Shard
from ..exceptions import ForgedJob, UnreadableJob
from ..jobs import decode, is_member, sign_anew
from .durable import put_in_shards
from .pages import grouped

logger = logging.getLogger("django_delayq.mirror")


def move_jobs(broker: Broker, shards: Iterable[Shard], moved: dict[str, int]) -> int:
    """Move what waits or is dead in one of these shards and belongs elsewhere, and add it to `moved`, per queue.

    Returns how many stay for now, because a worker holds them.
    """
    jobs = JobBroker(broker)
    held = 0
    for shard in shards:
        for page in jobs.waiting(shard):
            wrong = {member: wake for member, wake in page if jobs.shard_of(member, shard.queue) != shard}
            left = _move(jobs, shard, wrong)
            moved[shard.queue] += left
            held += len(wrong) - left
        for page in jobs.dead(shard):
            moved[shard.queue] += _move_dead(jobs, shard, page)
    return held


def move_results(broker: Broker, queues: Iterable[str]) -> None:
    """Move the results that are not where they are looked for."""
    jobs = JobBroker(broker)
    for queue in queues:
        for number, member in jobs.results(queue):
            shard = jobs.shard_of(member, queue)
            if shard.number != number:
                jobs.move_result(member, Shard(queue, number), shard)


def _move(jobs: JobBroker, shard: Shard, wakes: Mapping[str, int]) -> int:
    """Move jobs to their own shards; return how many have left this one. See Note [Jobs enter before they leave]."""
    views = jobs.views(shard, list(wakes)) if wakes else []
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
    _enter(jobs, grouped(entering, lambda job: jobs.shard_of(job.member, shard.queue)))
    return left + sum(jobs.change(shard, job.member, "leave") in ("OK", "GONE") for job in entering)


def _labels(jobs: JobBroker, shard: Shard, member: str, payload: str) -> tuple[int, str]:
    """Return the priority and the unique key of a job; what Redis has of them where its text cannot be read here."""
    try:
        _, call, _ = decode(shard.queue, member, payload)
    except (ForgedJob, UnreadableJob):
        return jobs.labels(shard, member)
    return call.priority, "" if call.durable else call.unique  # a durable one's is guarded by the database


def _enter(jobs: JobBroker, groups: Mapping[Shard, Sequence[NewJob]]) -> None:
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
    for (member, died_ms), view in zip(wrong, jobs.views(shard, [member for member, _ in wrong]), strict=True):
        text = sign_anew(shard.queue, member, view.payload)
        jobs.entomb(jobs.shard_of(member, shard.queue), member, died_ms, text)
        jobs.change(shard, member, "bury")
    return len(wrong)
