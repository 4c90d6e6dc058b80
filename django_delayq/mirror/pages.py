"""Rows page by page."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from django.db.models import QuerySet

#: Rows that are read and written at a time. Scripts take smaller parts: `broker.SCRIPT_PART`.
PAGE = 1000

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
