"""Lists that stay fast at any length: rows are counted up to a maximum, and there are no pages beyond it."""

from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.utils.functional import cached_property

#: Maximum rows counted; a list with more is long.
MOST_COUNTED = 10_000
#: Maximum schedules, and maximum jobs, that a search of runs matches.
MOST_FOUND = 1_000


def is_long(rows: QuerySet[Any], most: int | None = None) -> bool:
    """Return whether there are more than `most` rows, by default MOST_COUNTED."""
    most = MOST_COUNTED if most is None else most
    return rows.order_by().values("pk")[most : most + 1].exists()


def key_before_newest(rows: QuerySet[Any], most: int) -> int:
    """Return the key of the first row older than the `most` newest ones, 0 if there is none."""
    return rows.order_by("-pk").values_list("pk", flat=True)[most : most + 1].first() or 0


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts and shows up to MOST_COUNTED rows; `is_capped` is True if there are more."""

    is_capped = False

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        found: int = rows.order_by().values("pk")[: MOST_COUNTED + 1].count()
        self.is_capped = found > MOST_COUNTED
        return min(found, MOST_COUNTED)
