"""Locks rows that users edit, in one sequence. A database without row locks gets no lock query.

Note [Order of locks]
A transaction that writes several rows locks them in this sequence, those of one table by primary key: schedules, then
the rows that belong to them (runs, states). So edits, deletions, syncs and recordings wait for each other
without a deadlock. Django's deletion begins with the rows that belong to a schedule, so the schedules are locked first.
A transaction that writes states of schedules without editing these locks the schedules. Workers wait for no row lock:
see `ledger/locks.py`. If PostgreSQL still resolves a deadlock against a worker, as with SQL of a user, the worker
treats it as an outage: it keeps its writes and repeats them.
"""

from typing import Any, TypeVar

from django.db import connections
from django.db.models import Model, QuerySet

Row = TypeVar("Row", bound=Model)


def locked(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Lock rows for writing, by primary key, as far as the database can."""
    return rows.order_by("pk").select_for_update(no_key=connections[rows.db].vendor == "postgresql")


def lock_to_delete(schedules: QuerySet[Any]) -> None:
    """Lock schedules before the rows that belong to them are deleted. See Note [Order of locks].

    Deletes their former definitions and tags, which Django would read one by one.
    """
    related = schedules.model._meta.get_field
    if connections[schedules.db].features.has_select_for_update:
        list(schedules.order_by("pk").select_for_update(of=("self",)).values_list("pk"))
    for name in ("definitions", "tags"):
        related(name).related_model._base_manager.using(schedules.db).filter(schedule__in=schedules).delete()
