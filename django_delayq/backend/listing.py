"""The jobs that Redis holds, and those that are dead in the database, for people to look at: counted, listed in pages,
one by one. Changes nothing.

Whoever calls brings the broker, and with it how long Redis may take. What is not signed with this project's key is told
as such, and nothing of it is read.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .. import conf, ledger, mirror
from ..broker import Broker, JobBroker, Place, claimed_ms
from ..broker.job_pages import After, JobPages, Part
from ..jobs import parse_id
from . import stored
from .dead_pages import list_dead
from .seen import LISTED, Flaw, JobState, Listing, SeenJob, seen_view

__all__ = [
    "LISTED", "Flaw", "JobState", "JobTotals", "Listing", "SeenJob", "count_jobs", "find_job", "find_stored",
    "list_dead", "list_jobs", "locate", "places_of",
]  # fmt: skip

#: More rounds for one page are not made where workers hold nearly all that is looked at.
MOST_ROUNDS = 5
#: So many held jobs are read and sorted, at most about twice as many where Redis returns more at once.
MOST_HELD = 1_000


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


class JobTotals(NamedTuple):
    """How many jobs are in each state. Of the dead ones `more` are there where not all of the database were counted."""

    waiting: int
    ready: int
    running: int
    dead: int
    more: bool


def count_jobs(broker: Broker, places: Sequence[Place]) -> JobTotals:
    """Return how many jobs of these places are in each state; of the database's dead ones up to `MOST_COUNTED` count.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    counts = JobBroker(broker).counts(places)
    waiting, ready, running, dead = (sum(column) for column in zip((0, 0, 0, 0), *counts, strict=True))
    rows = ledger.count_dead(queues_of(places), stored.MOST_COUNTED + 1)
    more = rows > stored.MOST_COUNTED
    return JobTotals(waiting, ready, running, dead + min(rows, stored.MOST_COUNTED), more)


def list_jobs(broker: Broker, places: Sequence[Place], state: JobState, *, size: int, after: str = "") -> Listing:
    """Return a page of jobs: what is due next, what died last and what runs for the longest time comes first.

    Reads about `size` jobs of any number. Dead ones are those of Redis and of the database; what has become of durable
    ones is read in their rows. An `after` that no listing gave begins at the first page.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    if state == JobState.RUNNING:
        return _running(broker, places, size, after)
    if state == JobState.DEAD:
        return list_dead(queues_of(places), size=size, after=after, broker=broker, places=places)
    part: Part = "jobs" if state == JobState.WAITING else "ready"
    pages, jobs, found = JobPages(broker), JobBroker(broker), list[SeenJob]()
    begin = After.parse(after)
    for _ in range(MOST_ROUNDS):
        page = pages.ordered(part, places, size - len(found), after=begin)
        views = jobs.views_of([(row.place, row.member) for row in page.rows])
        for row, view in zip(page.rows, views, strict=True):
            seen = seen_view(row.place, row.member, view, turn_us=row.score if state == JobState.READY else None)
            if seen is not None and seen.state == state:
                found.append(seen)
        begin = page.after
        if begin is None or len(found) >= size:
            break
    return Listing(stored.with_states(found), "" if begin is None else str(begin))


def find_stored(wanted: str) -> SeenJob | None:
    """Return the job of a result's id where its row tells all: it is durable and dead, or succeeded. Asks no Redis."""
    row = stored.find_row(wanted)
    return stored.seen_row(row) if row is not None and stored.tells_all(row) else None


def find_job(broker: Broker, wanted: str) -> SeenJob | None:
    """Return the job of a result's id, also one that has ended while its result stands; None where there is none.

    Raises:
        BrokerError: Redis does not answer, or with an error.
        ForeignLayout: The prefix belongs to another database.
    """
    row = stored.find_row(wanted)
    if row is not None and stored.tells_all(row):
        return stored.seen_row(row)
    found = locate(broker, wanted)
    if found is None:
        return None
    place, member = found
    view = JobBroker(broker).view(place, member)
    ready = view.payload and view.waits_until_ms is None and view.died_ms is None
    seen = seen_view(place, member, view, turn_us=JobPages(broker).turn_us(place, member) if ready else None)
    if seen is None:
        return None if row is None else stored.seen_row(row)
    return stored.with_states([seen])[0]


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


def queues_of(places: Sequence[Place]) -> list[str]:
    """Return the queues that these places belong to."""
    return list(dict.fromkeys(place.queue for place in places))


def _running(broker: Broker, places: Sequence[Place], size: int, after: str) -> Listing:
    start = int(after) if after.isascii() and after.isdigit() and len(after) < 9 else 0
    read = JobPages(broker).held(places, MOST_HELD)
    held = sorted((claimed_ms(holder) or 0, place, member) for place, member, holder in read if " " in holder)
    part = [(place, member) for _, place, member in held[start : start + size]]
    views = JobBroker(broker).views_of(part)
    seen = [seen_view(place, member, view) for (place, member), view in zip(part, views, strict=True)]
    more = start + size < len(held)
    return Listing(
        stored.with_states([job for job in seen if job is not None and job.state == JobState.RUNNING]),
        str(start + size) if more else "",
        capped=not more and len(read) >= MOST_HELD,
    )
