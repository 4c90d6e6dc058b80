"""Locks the rows that people write, in one order. Where a database has no row locks, nothing is asked.

Note [Order of locks]
Whoever writes several rows in one transaction locks them in this order, those of one table by primary key:
schedules, then what belongs to them (declarations, runs, states). Edits, deletions, syncs and recordings then wait
for each other, and never in a circle. Django's deletion alone begins with what belongs to a schedule, so the schedules
are locked before it begins; and who writes states of schedules that it does not edit locks the schedules. Workers wait
for nobody's row: see `ledger/locks.py`. A deadlock that PostgreSQL resolves against a worker all the same, as with
somebody's own SQL, is an outage like any other: what was to be written is kept, and written again.
"""

from typing import Any, TypeVar

from django.db import connections
from django.db.models import Model, QuerySet

Row = TypeVar("Row", bound=Model)


def locked(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Lock rows, to write them: by primary key, as far as the database can."""
    return rows.order_by("pk").select_for_update(no_key=connections[rows.db].vendor == "postgresql")


def lock_to_delete(schedules: QuerySet[Any]) -> None:
    """Lock schedules, before what belongs to them is deleted. See Note [Order of locks].

    Deletes their former definitions and tags, which Django would read one by one.
    """
    related = schedules.model._meta.get_field
    if connections[schedules.db].features.has_select_for_update:
        list(schedules.order_by("pk").select_for_update(of=("self",)).values_list("pk"))
    for name in ("definitions", "tags"):
        related(name).related_model._base_manager.using(schedules.db).filter(schedule__in=schedules).delete()
