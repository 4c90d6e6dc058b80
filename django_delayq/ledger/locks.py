"""Locks of rows, as far as the database has them. SQLite has one writer anyway."""

from typing import Any, TypeVar

from django.db import connections
from django.db.models import Model, QuerySet

Row = TypeVar("Row", bound=Model)


def locked(rows: QuerySet[Row], *, skip: bool = False) -> QuerySet[Row]:
    """Lock rows where the database can, by primary key; `skip` those that somebody else has locked."""
    features: Any = connections[rows.db].features
    how: dict[str, Any] = {}
    if skip and features.has_select_for_update_skip_locked:
        how["skip_locked"] = True
    if connections[rows.db].vendor == "postgresql":
        how["no_key"] = True
    return rows.order_by("pk").select_for_update(**how)
