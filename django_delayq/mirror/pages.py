"""Rows page by page, and items by what they have in common."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from django.db.models import QuerySet

#: Rows that are read and written at a time. Scripts take smaller parts: `broker.SCRIPT_PART`.
PAGE = 1000

Item = TypeVar("Item")
Key = TypeVar("Key")


def pages(rows: "QuerySet[Any, Item]") -> Iterator[list[Item]]:
    """Yield rows that have a `pk`, in its order; each page is read when it is asked for."""
    last: Any = 0
    while page := list(rows.filter(pk__gt=last).order_by("pk")[:PAGE]):
        yield page
        last = page[-1].pk  # type: ignore[attr-defined]


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items of each key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
