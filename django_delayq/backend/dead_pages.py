"""Pages of dead jobs: those of Redis and those of the database together, what died last first. Changes nothing.

Note [Two orders merged]
Plain jobs are dead in Redis, durable ones in the database, and a page is the first of both. It ends at a place of its
own in each of the two: so the next one begins there, however many of either kind the page has shown.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from .. import ledger
from ..broker import Broker, JobBroker, Place
from ..broker.job_pages import After, JobPages, Page, after_of
from ..ledger import DeadKey
from ..timing import from_ms, to_ms
from .seen import Listing, SeenJob, seen_view
from .stored import seen_row

_ROW = re.compile(r"([0-9]{1,14})\.([0-9]{1,18})")


class Begin(NamedTuple):
    """Where a page begins; None where it is the first one. See Note [Two orders merged]."""

    redis: After | None
    row: DeadKey | None

    def __str__(self) -> str:
        row = "" if self.row is None else f"{to_ms(self.row[0])}.{self.row[1]}"
        return f"{self.redis or ''}|{row}"

    @classmethod
    def parse(cls, value: str) -> "Begin":
        """Return what `str` wrote; the first page for anything else."""
        redis, _, row = value.partition("|")
        found = _ROW.fullmatch(row)
        return cls(After.parse(redis), None if found is None else (from_ms(int(found[1])), int(found[2])))


def list_dead(
    queues: Sequence[str],
    *,
    size: int,
    after: str = "",
    broker: Broker | None = None,
    places: Sequence[Place] = (),
) -> Listing:
    """Return a page of the dead jobs of these queues in the database and, with a broker, of these places in Redis.

    Reads about `size` jobs of either kind, and the texts of those that are shown.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    begin = Begin.parse(after)
    page = Page([], None)
    if broker is not None:
        page = JobPages(broker).ordered("dead", places, size, after=begin.redis, newest_first=True)
    keys = ledger.dead_keys(queues, size + 1, after=begin.row)
    merged = sorted(
        [(-row.score, 0, at) for at, row in enumerate(page.rows)]
        + [(-float(to_ms(died_at)), 1, at) for at, (died_at, _) in enumerate(keys)]
    )
    shown = merged[:size]
    ranked = [page.rows[at] for _, kind, at in shown if kind == 0]
    chosen = [keys[at] for _, kind, at in shown if kind == 1]
    found: dict[tuple[int, int], SeenJob | None] = {}
    if broker is not None:
        views = JobBroker(broker).views_of([(row.place, row.member) for row in ranked])
        for at, (row, view) in enumerate(zip(ranked, views, strict=True)):
            found[0, at] = seen_view(row.place, row.member, view)
    rows = ledger.load_dead([pk for _, pk in chosen])
    for at, (_, pk) in enumerate(chosen):
        found[1, at] = seen_row(rows[pk]) if pk in rows else None
    jobs = [seen for _, kind, at in shown if (seen := found.get((kind, at))) is not None]
    if len(merged) <= size and page.after is None:
        return Listing(jobs)
    return Listing(jobs, str(Begin(after_of(ranked, begin.redis), chosen[-1] if chosen else begin.row)))
