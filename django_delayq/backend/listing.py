"""The jobs that Redis holds, and those that have ended in the database, for people to look at: counted, listed in
pages, searched, one by one. Changes nothing.

Whoever calls brings the broker, and with it how long Redis may take. What is not signed with this project's key is told
as such, and nothing of it is read.

Note [Two orders merged]
Plain jobs are dead or have succeeded in Redis, durable ones in the database, and a page is the first of both. It ends
at a place of its own in each of the two: so the next one begins there, however many of either kind the page has shown.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .. import ledger, mirror
from ..broker import Broker, JobBroker, Shard, claimed_ms
from ..broker.job_pages import After, JobPages, Page, Part, Ranked, after_of
from ..ledger import EndKey
from ..timing import from_ms, to_ms
from .in_database import DatabaseStore, seen_row, tells_all, with_states
from .in_redis import RedisStore, seen_view, with_turn
from .store import LISTED, Flaw, JobState, SeenJob

__all__ = [
    "LISTED", "Flaw", "JobState", "JobTotals", "Listing", "SeenJob", "count_jobs", "find_job", "find_stored",
    "list_ended", "list_jobs", "search", "shards_of",
]  # fmt: skip

#: More rounds for one page are not made where workers hold nearly all that is looked at.
MOST_ROUNDS = 5
#: So many dead jobs of the database are counted.
MOST_COUNTED = 1_000
#: So many held jobs are read and sorted, at most about twice as many where Redis returns more at once.
MOST_HELD = 1_000
#: A search looks through so many jobs at once, in pages of so many.
MOST_SEARCHED, SEARCH_PAGE = 500, 100

_ROW = re.compile(r"([0-9]{1,14})\.([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of jobs. `after` is what the next one is asked for with, '' where there is none.

    `capped`: there are more, but they cannot be paged to. `looked`: how many a search has looked through for it.
    """

    jobs: list[SeenJob]
    after: str = ""
    capped: bool = False
    looked: int = 0


def search(read: Callable[[str], Listing], matches: Callable[[SeenJob], bool], *, size: int, after: str) -> Listing:
    """Return the jobs that match, of those that `read` lists from a place on: at least `size`, as far as there are.

    Ends after `MOST_SEARCHED` jobs, so that there may be none; its `after` looks on from there.
    """
    found: list[SeenJob] = []
    looked = 0
    for _ in range(MOST_SEARCHED // SEARCH_PAGE):
        page = read(after)
        found += filter(matches, page.jobs)
        looked, after = looked + len(page.jobs), page.after
        if not after or len(found) >= size:
            break
    return Listing(found, after, page.capped, looked)


def shards_of(broker: Broker, queues: Sequence[str]) -> list[Shard]:
    """Return the shards of these queues as they stand in Redis, or as the settings say where nothing stands.

    Raises:
        BrokerError: Redis does not answer, or with an error.
        ForeignLayout: The prefix belongs to another database.
    """
    counts = mirror.standing_shards(broker)
    return [
        Shard(queue, number)
        for queue in queues
        for number in range(counts.get(queue) or broker.config.shard_count(queue))
    ]


class JobTotals(NamedTuple):
    """How many jobs are in each state. Of the dead ones `more` are there where not all of the database were counted."""

    waiting: int
    ready: int
    running: int
    dead: int
    more: bool


def count_jobs(broker: Broker, shards: Sequence[Shard]) -> JobTotals:
    """Return how many jobs of these shards are in each state; of the database's dead ones up to `MOST_COUNTED` count.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    counts = JobBroker(broker).counts(shards)
    waiting, ready, running, dead = (sum(column) for column in zip((0, 0, 0, 0), *counts, strict=True))
    rows = ledger.count_dead(_queues_of(shards), MOST_COUNTED + 1)
    more = rows > MOST_COUNTED
    return JobTotals(waiting, ready, running, dead + min(rows, MOST_COUNTED), more)


def list_jobs(broker: Broker, shards: Sequence[Shard], state: JobState, *, size: int, after: str = "") -> Listing:
    """Return a page of jobs: what is due next, what died last and what runs for the longest time comes first.

    Reads about `size` jobs of any number. Those that have ended are those of Redis and of the database; what has become
    of durable ones is read in their rows. An `after` that no listing gave begins at the first page.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    if state == JobState.RUNNING:
        return _running(broker, shards, size, after)
    if state in (JobState.DEAD, JobState.ENDED):
        return list_ended(state, _queues_of(shards), size=size, after=after, broker=broker, shards=shards)
    part: Part = "jobs" if state == JobState.WAITING else "ready"
    found: list[SeenJob] = []
    begin = After.parse(after)
    for _ in range(MOST_ROUNDS):
        page = JobPages(broker).ordered(part, shards, size - len(found), after=begin)
        found += _look(broker, page.rows, state).values()
        begin = page.after
        if begin is None or len(found) >= size:
            break
    return Listing(with_states(found), "" if begin is None else str(begin))


def _queues_of(shards: Sequence[Shard]) -> list[str]:
    return list(dict.fromkeys(shard.queue for shard in shards))


def _look(broker: Broker, rows: Sequence[Ranked], state: JobState) -> dict[Ranked, SeenJob]:
    """Return those of these jobs that are in this state, in this order."""
    found = {}
    views = JobBroker(broker).views([(row.shard, row.member) for row in rows])
    for row, view in zip(rows, views, strict=True):
        seen = seen_view(row.shard, row.member, view, turn_us=row.score if state == JobState.READY else None)
        if seen is not None and seen.state == state:
            found[row] = seen
    return found


def _running(broker: Broker, shards: Sequence[Shard], size: int, after: str) -> Listing:
    start = int(after) if after.isascii() and after.isdigit() and len(after) < 9 else 0
    read = JobPages(broker).held(shards, MOST_HELD)
    held = sorted((claimed_ms(holder) or 0, shard, member) for shard, member, holder in read if " " in holder)
    rows = [Ranked(shard, member, claimed) for claimed, shard, member in held[start : start + size]]
    more = start + size < len(held)
    return Listing(
        with_states(list(_look(broker, rows, JobState.RUNNING).values())),
        str(start + size) if more else "",
        capped=not more and len(read) >= MOST_HELD,
    )


def find_stored(wanted: str) -> SeenJob | None:
    """Return the job of a result's id where its row tells all: it is durable and dead, or succeeded. Asks no Redis."""
    seen = DatabaseStore().find(wanted)
    return seen if seen is not None and tells_all(seen) else None


def find_job(broker: Broker, wanted: str) -> SeenJob | None:
    """Return the job of a result's id, also one that has ended while its result stands; None where there is none.

    Raises:
        BrokerError: Redis does not answer, or with an error.
        ForeignLayout: The prefix belongs to another database.
    """
    stored = DatabaseStore().find(wanted)
    if stored is not None and tells_all(stored):
        return stored
    seen = RedisStore(broker).find(wanted)
    if seen is None:
        return stored
    if seen.state == JobState.READY:
        seen = with_turn(seen, JobPages(broker).turn_us(seen.shard, seen.member))
    return with_states([seen])[0]


# -- dead jobs, and those that succeeded


def list_ended(
    state: JobState,
    queues: Sequence[str],
    *,
    size: int,
    after: str = "",
    broker: Broker | None = None,
    shards: Sequence[Shard] = (),
) -> Listing:
    """Return a page of the jobs of these queues in the database and, with a broker, of these shards in Redis.

    `DEAD`: the dead ones; `ENDED`: those that succeeded, as long as their results are kept, in Redis the newest 1,000
    of a shard. What ended last comes first. Reads about `size` jobs of either kind, and the texts of what is shown.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    in_redis, _, in_rows = after.partition("|")  # see Note [Two orders merged]
    begin, match = After.parse(in_redis), _ROW.fullmatch(in_rows)
    row_begin = None if match is None else (from_ms(int(match[1])), int(match[2]))
    page, dead = Page([], None), state == JobState.DEAD
    if broker is not None:
        part: Part = "dead" if dead else "done"
        page = JobPages(broker).ordered(part, shards, size, after=begin, newest_first=True)
    ended: list[Ranked | EndKey] = [*page.rows, *ledger.end_keys(queues, size + 1, dead=dead, after=row_begin)]
    ended.sort(key=_ended_ms, reverse=True)
    shown = ended[:size]
    ranked = [item for item in shown if isinstance(item, Ranked)]
    chosen = [item for item in shown if not isinstance(item, Ranked)]
    found = _read_ended(broker, state, ranked, chosen)
    jobs = [found[item] for item in shown if item in found]
    if len(ended) <= size and page.after is None:
        return Listing(jobs)
    last = chosen[-1] if chosen else row_begin
    in_rows = "" if last is None else f"{to_ms(last[0])}.{last[1]}"
    return Listing(jobs, f"{after_of(ranked, begin) or ''}|{in_rows}")


def _read_ended(
    broker: Broker | None, state: JobState, ranked: Sequence[Ranked], keys: Sequence[EndKey]
) -> dict[Ranked | EndKey, SeenJob]:
    """Return those of these jobs that are still in this state."""
    rows = ledger.load_ended([pk for _, pk in keys], dead=state == JobState.DEAD)
    found: dict[Ranked | EndKey, SeenJob] = {key: seen_row(rows[key[1]]) for key in keys if key[1] in rows}
    if broker is not None:
        found.update(_look(broker, ranked, state).items())
    return found


def _ended_ms(item: Ranked | EndKey) -> float:
    return item.score if isinstance(item, Ranked) else to_ms(item[0])
