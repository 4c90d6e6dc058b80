"""Rows page by page."""

from collections.abc import Iterator, Sequence
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


def parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield pages of what is at hand."""
    for at in range(0, len(items), PAGE):
        yield items[at : at + PAGE]
