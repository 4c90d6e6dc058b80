"""Reads schedules, open runs and jobs page by page.

Note [Pages are swept in random order]
Several workers may sweep after one bulk write. Each reads the oldest few pages, shuffles them, and checks each page
again before working on it: so two workers seldom do the same page, without coordination.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from django.db.models import QuerySet

from .. import ledger
from ..ledger.rows import RunRow
from ..models import Schedule

#: Rows per page. Scripts take smaller parts: `broker.SCRIPT_PART`.
PAGE = 1000
#: Maximum pages of each kind per delta sweep: one or two seconds of a worker's time.
PAGES = 10

Item = TypeVar("Item")


def split_pages(items: Iterable[Item]) -> Iterator[Sequence[Item]]:
    """Yield pages of items, which are all read when the first page is requested."""
    found = list(items)
    for at in range(0, len(found), PAGE):
        yield found[at : at + PAGE]


def shuffle_pages(pks: Iterable[int]) -> list[Sequence[int]]:
    """Return pages of sorted primary keys in random order. See Note [Pages are swept in random order]."""
    found = list(split_pages(sorted(pks)))
    random.shuffle(found)
    return found


def compress_keys(pks: Collection[int]) -> list[int] | range:
    """Return the keys, as a range if it adds few rows: the database answers a range faster."""
    first, last = min(pks, default=0), max(pks, default=-1)
    return range(first, last + 1) if last - first < 2 * len(pks) else list(pks)


def query_queues(**where: Any) -> "QuerySet[Schedule, Any]":
    return Schedule._base_manager.using(ledger.get_database()).filter(**where).values_list("pk", "queue")


def walk(
    check_schedules: Callable[[dict[int, str]], Item],
    check_runs: Callable[[list[RunRow]], Item],
    queues: Collection[str] | None = None,
) -> Iterator[tuple[int, Item]]:
    """Yield (count, result) for each page of schedules, {primary key: queue}, and then (0, result) of runs and jobs."""
    rows, last = query_queues() if queues is None else query_queues(queue__in=queues), 0
    while page := dict(rows.filter(pk__gt=last).order_by("pk")[:PAGE]):
        yield len(page), check_schedules(page)
        last = max(page)
    for runs in ledger.read_open_pages(PAGE, queues):
        yield 0, check_runs(runs)
