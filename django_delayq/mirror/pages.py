"""Rows page by page."""

from collections.abc import Iterator
from typing import Any, TypeVar

from django.db.models import QuerySet

#: Rows that are read and written at a time. Scripts take smaller parts: `broker.SCRIPT_PART`.
PAGE = 1000

Item = TypeVar("Item")


def pages(rows: "QuerySet[Any, Item]") -> Iterator[list[Item]]:
    """Yield rows that have a `pk`, in its order; each page is read when it is asked for."""
    last: Any = 0
    while page := list(rows.filter(pk__gt=last).order_by("pk")[:PAGE]):
        yield page
        last = page[-1].pk  # type: ignore[attr-defined]
