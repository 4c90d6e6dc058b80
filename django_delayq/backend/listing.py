"""The jobs that Redis holds, for people to look at: counted, listed in pages, one by one. Changes nothing.

Whoever calls brings the broker, and with it how long Redis may take. What is not signed with this project's key is told
as such, and nothing of it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from .. import conf, mirror
from ..broker import Broker, JobBroker, JobCounts, JobView, Place
from ..broker.job_pages import PATIENCE_MS, After, JobPages, Part
from ..exceptions import ForgedJob
from ..jobs import Call, State, decode, member_payload, parse_id, result_id

#: More rounds for one page are not made where workers hold nearly all that is looked at.
MOST_ROUNDS = 5
#: So many held jobs are read and sorted, at most about twice as many where Redis returns more at once.
MOST_HELD = 1_000


class JobState(StrEnum):
    """Where a job is. `WAITING` for a time, `READY` for its turn, `ENDED` with a result."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DEAD = "dead"
    ENDED = "ended"


#: The states that can be listed.
LISTED = (JobState.WAITING, JobState.READY, JobState.RUNNING, JobState.DEAD)


class Flaw(StrEnum):
    """What is wrong with a job's text: not signed with this project's key, or not readable although it is."""

    FORGED = "forged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job as it was seen. All instants are ms since the epoch, None where they are not known.

    `at_ms`: until when it waits, since when it is ready (about: by its turn), since when a worker has it, when it died.
    `call` and `record` are None where there is a `flaw`. `result_id` is None where its name is none of ours.
    """

    place: Place
    member: str
    state: JobState
    at_ms: int | None
    size: int
    worker: str = ""
    lease_until_ms: int | None = None
    flaw: Flaw | None = None
    call: Call | None = None
    record: State | None = None

    @property
    def result_id(self) -> str | None:
        """The id of its result, by which it can be found and changed."""
        found = result_id(self.place.queue, self.member)
        return found if parse_id(found) == (self.place.queue, self.member) else None


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of jobs. `after` is what the next one is asked for with, '' where there is none.

    `capped`: there are more, but they cannot be paged to.
    """

    jobs: list[SeenJob]
    after: str = ""
    capped: bool = False


def places_of(broker: Broker, queues: Sequence[str]) -> list[Place]:
    """Return the shards of these queues as they stand in Redis, or as the settings say where nothing stands.

    Raises:
        BrokerError: Redis does not answer, or with an error.
        ForeignLayout: The prefix belongs to another database.
    """
    shards = mirror.standing_shards(broker)
    return [
        Place(queue, shard) for queue in queues for shard in range(shards.get(queue) or broker.config.shards_of(queue))
    ]


def count_jobs(broker: Broker, places: Sequence[Place]) -> JobCounts:
    """Return how many jobs of these places are in each state.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    counts = JobBroker(broker).counts(places)
    return JobCounts(*(sum(column) for column in zip(*counts, strict=True))) if counts else JobCounts(0, 0, 0, 0)


def list_jobs(broker: Broker, places: Sequence[Place], state: JobState, *, size: int, after: str = "") -> Listing:
    """Return a page of jobs: what is due next, what died last and what runs for the longest time comes first.

    Reads about `size` jobs of any number. An `after` that no listing gave begins at the first page.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    if state == JobState.RUNNING:
        return _running(broker, places, size, after)
    part: Part = "jobs" if state == JobState.WAITING else "ready" if state == JobState.READY else "dead"
    pages, jobs, found = JobPages(broker), JobBroker(broker), list[SeenJob]()
    begin = After.parse(after)
    for _ in range(MOST_ROUNDS):
        page = pages.ordered(part, places, size - len(found), after=begin, newest_first=state == JobState.DEAD)
        views = jobs.views_of([(row.place, row.member) for row in page.rows])
        for row, view in zip(page.rows, views, strict=True):
            seen = _seen(row.place, row.member, view, turn_us=row.score if state == JobState.READY else None)
            if seen is not None and seen.state == state:
                found.append(seen)
        begin = page.after
        if begin is None or len(found) >= size:
            break
    return Listing(found, "" if begin is None else str(begin))


def find_job(broker: Broker, wanted: str) -> SeenJob | None:
    """Return the job of a result's id, also one that has ended while its result stands; None where there is none.

    Raises:
        BrokerError: Redis does not answer, or with an error.
        ForeignLayout: The prefix belongs to another database.
    """
    found = locate(broker, wanted)
    if found is None:
        return None
    place, member = found
    view = JobBroker(broker).view(place, member)
    ready = view.payload and view.waits_until_ms is None and view.died_ms is None
    return _seen(place, member, view, turn_us=JobPages(broker).turn_us(place, member) if ready else None)


def locate(broker: Broker, wanted: str) -> tuple[Place, str] | None:
    """Return where the job of a result's id lives, and its member; None where no queue of ours can have it.

    Raises:
        BrokerError: Redis does not answer, or with an error.
        ForeignLayout: The prefix belongs to another database.
    """
    parsed = parse_id(wanted)
    if parsed is None or parsed[0] not in conf.get_config().queues:
        return None
    queue, member = parsed
    return JobBroker(broker).place_of(member, queue, mirror.standing_shards(broker)), member


def _running(broker: Broker, places: Sequence[Place], size: int, after: str) -> Listing:
    start = int(after) if after.isascii() and after.isdigit() and len(after) < 9 else 0
    read = JobPages(broker).held(places, MOST_HELD)
    held = sorted((_claimed_ms(holder) or 0, place, member) for place, member, holder in read if " " in holder)
    part = [(place, member) for _, place, member in held[start : start + size]]
    views = JobBroker(broker).views_of(part)
    seen = [_seen(place, member, view) for (place, member), view in zip(part, views, strict=True)]
    more = start + size < len(held)
    return Listing(
        [job for job in seen if job is not None and job.state == JobState.RUNNING],
        str(start + size) if more else "",
        capped=not more and len(read) >= MOST_HELD,
    )


def _seen(place: Place, member: str, view: JobView, turn_us: float | None = None) -> SeenJob | None:
    """Return what these values of Redis say of a job; None where it is gone."""
    text = view.payload or view.result
    if not text and view.waits_until_ms is None and view.died_ms is None and turn_us is None:
        return None
    held = " " in view.holder
    worker = view.holder.partition(" ")[2]
    if not view.payload and view.result:
        seen = SeenJob(place, member, JobState.ENDED, None, len(text))
    elif view.died_ms is not None:
        seen = SeenJob(place, member, JobState.DEAD, view.died_ms, len(text))
    elif held:
        claimed = _claimed_ms(view.holder)
        seen = SeenJob(place, member, JobState.RUNNING, claimed, len(text), worker, view.waits_until_ms)
    elif view.waits_until_ms is None:
        seen = SeenJob(place, member, JobState.READY, None, len(text))
    else:
        seen = SeenJob(place, member, JobState.WAITING, view.waits_until_ms, len(text))
    seen = _read(seen, text)
    if seen.state == JobState.ENDED and seen.flaw:
        return None  # as for whoever asks the backend: there is no such result
    if seen.state == JobState.READY and turn_us is not None:
        priority = 0 if seen.call is None else seen.call.priority
        seen = replace(seen, at_ms=max(0, int(min(turn_us, 2.0**62)) // 1000 + priority * PATIENCE_MS))
    elif seen.state == JobState.ENDED and seen.record is not None:
        seen = replace(seen, at_ms=seen.record.finished)
    return seen


def _read(seen: SeenJob, text: str) -> SeenJob:
    try:
        member_payload(seen.member, text)
    except ForgedJob:
        return replace(seen, flaw=Flaw.FORGED)
    try:
        _, call, record = decode(seen.member, text)
    except ForgedJob:
        return replace(seen, flaw=Flaw.UNREADABLE)
    return replace(seen, call=call, record=record)


def _claimed_ms(holder: str) -> int | None:
    """Return when a holder claimed, which its fence tells."""
    fence = holder.partition(" ")[0].partition(".")[0]
    return int(fence) // 1024 if fence.isascii() and fence.isdigit() and len(fence) < 17 else None
