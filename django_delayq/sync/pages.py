"""Rows page by page.

Note [In any order]
What a bulk write has left is swept by every worker that finds it. Each reads the oldest of it, some pages at once, and
takes these pages in an order of its own, asking before each what is left of it: so two workers seldom do the same one,
without a word between them.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from django.db.models import QuerySet

#: Rows that are read and written at a time. Scripts take smaller parts: `broker.SCRIPT_PART`.
PAGE = 1000
#: A delta sweep takes so many pages of each kind: a second or two of a worker's time.
PAGES = 10

Item = TypeVar("Item")


def pages(rows: "QuerySet[Any, Item]") -> Iterator[list[Item]]:
    """Yield rows that have a `pk`, or are one, in its order; each page is read when it is asked for."""
    last: Any = 0
    while page := list(rows.filter(pk__gt=last).order_by("pk")[:PAGE]):
        yield page
        last = getattr(page[-1], "pk", page[-1])


def parts(items: Iterable[Item]) -> Iterator[Sequence[Item]]:
    """Yield pages of items that are read at once, when the first page is asked for."""
    found = list(items)
    for at in range(0, len(found), PAGE):
        yield found[at : at + PAGE]


def shuffled(pks: Iterable[int]) -> list[Sequence[int]]:
    """Return pages of primary keys, those of a page in their order. See Note [In any order]."""
    found = list(parts(sorted(pks)))
    random.shuffle(found)
    return found
