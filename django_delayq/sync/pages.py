"""Rows page by page.

Note [Pages are swept in random order]
Several workers may sweep after one bulk write. Each reads the oldest few pages, shuffles them, and checks each page
again before working on it: so two workers seldom do the same page, without coordination.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from django.db.models import QuerySet

#: Rows per page. Scripts take smaller parts: `broker.SCRIPT_PART`.
PAGE = 1000
#: Maximum pages of each kind per delta sweep: one or two seconds of a worker's time.
PAGES = 10

Item = TypeVar("Item")


def pages(rows: "QuerySet[Any, Item]") -> Iterator[list[Item]]:
    """Yield rows that have a `pk`, or primary keys, in ascending order; each page is read on request."""
    last: Any = 0
    while page := list(rows.filter(pk__gt=last).order_by("pk")[:PAGE]):
        yield page
        last = getattr(page[-1], "pk", page[-1])


def parts(items: Iterable[Item]) -> Iterator[Sequence[Item]]:
    """Yield pages of items, which are all read when the first page is requested."""
    found = list(items)
    for at in range(0, len(found), PAGE):
        yield found[at : at + PAGE]


def shuffled(pks: Iterable[int]) -> list[Sequence[int]]:
    """Return pages of sorted primary keys in random order. See Note [Pages are swept in random order]."""
    found = list(parts(sorted(pks)))
    random.shuffle(found)
    return found
