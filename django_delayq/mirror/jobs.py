"""Moves jobs to the shards where they belong, while the number of shards changes. See `reshard.py`.

Note [Jobs enter before they leave]
A job has no row that could bring it back, so it enters its new place before it leaves the former one: a move that is
interrupted leaves it in both, and the next one goes on. It is executed in the new one only: whoever counts as before
finds out at its claim and hands it back, and so do those who count anew with what they find in a former place. What a
worker holds stays until that has ended; its result is moved like the others. Where the new place has finished it
meanwhile, its result keeps it from being added once more.
"""

import logging
from collections.abc import Iterable, Mapping

from ..broker import Broker, JobBroker, NewJob, Place, in_parts
from ..exceptions import ForgedJob, UnreadableJob
from ..jobs import decode, is_member, sign_anew

logger = logging.getLogger("django_delayq.mirror")


def move_jobs(broker: Broker, places: Iterable[Place], moved: dict[str, int]) -> int:
    """Move what waits or is dead in one of these places and belongs elsewhere, and add it to `moved`, per queue.

    Returns how many stay for now, because a worker holds them.
    """
    jobs = JobBroker(broker)
    held = 0
    for place in places:
        for page in jobs.waiting(place):
            wrong = {member: wake for member, wake in page if jobs.place_of(member, place.queue) != place}
            left = _move(jobs, place, wrong)
            moved[place.queue] += left
            held += len(wrong) - left
        for page in jobs.dead(place):
            moved[place.queue] += _move_dead(jobs, place, page)
    return held


def move_results(broker: Broker, queues: Iterable[str]) -> None:
    """Move the results that are not where they are looked for."""
    jobs = JobBroker(broker)
    for queue in queues:
        for shard, member in jobs.results(queue):
            place = jobs.place_of(member, queue)
            if place.shard != shard:
                jobs.move_result(member, Place(queue, shard), place)


def _move(jobs: JobBroker, place: Place, wakes: Mapping[str, int]) -> int:
    """Move jobs to their own places; return how many have left this one. See Note [Jobs enter before they leave]."""
    views = jobs.views(place, list(wakes)) if wakes else []
    entering: dict[Place, list[NewJob]] = {}
    now_ms, left = jobs.broker.now_ms(), 0
    for (member, wake_ms), view in zip(wakes.items(), views, strict=True):
        if " " in view.holder and (view.waits_until_ms or 0) > now_ms:  # others are marked, and held by nobody
            continue
        if not view.payload or not is_member(member):
            logger.error("Dropped from %s: %r, which is no job.", place, member[:100])
            left += jobs.change(place, member, "leave") in ("OK", "GONE")
            continue
        text = sign_anew(place.queue, member, view.payload)
        job = NewJob(member, wake_ms, *_labels(jobs, place, member, text), text)
        entering.setdefault(jobs.place_of(member, place.queue), []).append(job)
    for target, group in entering.items():
        _enter(jobs, target, group)
        left += sum(jobs.change(place, job.member, "leave") in ("OK", "GONE") for job in group)
    return left


def _labels(jobs: JobBroker, place: Place, member: str, payload: str) -> tuple[int, str]:
    """Return the priority and the unique key of a job; what Redis has of them where its text cannot be read here."""
    try:
        _, call, _ = decode(place.queue, member, payload)
    except (ForgedJob, UnreadableJob):
        return jobs.labels(place, member)
    return call.priority, "" if call.durable else call.unique  # a durable one's is guarded by the database


def _enter(jobs: JobBroker, place: Place, group: list[NewJob]) -> None:
    """Add jobs, whatever the epoch of the place is. Where two of one key wait, the first one keeps it."""
    epoch = (jobs.broker.epochs([place])[0] or "").removeprefix("building:")
    replies = jobs.enqueue_each(in_parts({place: group}), {place: epoch}, again=True)
    if any(found is None for _, found in replies):  # it has just been built
        _enter(jobs, place, group)
        return
    standing = [member for _, found in replies for member in found or ()]
    refused = [job for job, member in zip(group, standing, strict=True) if member not in ("", job.member)]
    if refused:
        _enter(jobs, place, [job._replace(unique="") for job in refused])


def _move_dead(jobs: JobBroker, place: Place, page: list[tuple[str, int]]) -> int:
    wrong = [(member, died) for member, died in page if jobs.place_of(member, place.queue) != place]
    for (member, died_ms), view in zip(wrong, jobs.views(place, [member for member, _ in wrong]), strict=True):
        text = sign_anew(place.queue, member, view.payload)
        jobs.entomb(jobs.place_of(member, place.queue), member, died_ms, text)
        jobs.change(place, member, "bury")
    return len(wrong)
