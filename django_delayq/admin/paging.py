"""Lists that stay quick however long they are: rows are counted up to a number, and no page lies behind it."""

from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.utils.functional import cached_property

#: Rows are counted up to this number; a longer list is long.
MOST_COUNTED = 10_000
#: A search for runs finds those of so many schedules, and so many jobs; as many schedules are listed by an error.
MOST_FOUND = 1_000


def is_long(rows: QuerySet[Any], most: int | None = None) -> bool:
    """Say whether there are more rows than `most`, by default than are counted."""
    most = MOST_COUNTED if most is None else most
    return rows.order_by().values("pk")[most : most + 1].exists()


def key_before_newest(rows: QuerySet[Any], most: int) -> int:
    """Return the primary key behind the `most` newest of these rows, 0 where there are no more."""
    return rows.order_by("-pk").values_list("pk", flat=True)[most : most + 1].first() or 0


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to MOST_COUNTED rows and has pages of these; `is_capped` says that there are more."""

    is_capped = False

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        found: int = rows.order_by().values("pk")[: MOST_COUNTED + 1].count()
        self.is_capped = found > MOST_COUNTED
        return min(found, MOST_COUNTED)
