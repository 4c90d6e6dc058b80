"""Reads from the database that is written to, even if a router sends reads to a replica; locks rows in one sequence.

Note [Reads use the primary]
A replica is behind. A form filled from it would overwrite new values with old ones, and a page would not show the last
change. To read the ledger from a replica, use `Run.objects.using(alias)`.

Note [Schedules are locked first]
A transaction that writes several rows locks them in this sequence, those of one table by primary key: schedules, then
the rows that belong to them (runs, states). So edits, deletions, syncs and recordings wait for each other without a
deadlock. A transaction that writes states, or deletes, locks the schedules first. Workers do not wait for locks of rows
(`ledger/locks.py`). They repeat their writes after a deadlock, which SQL of a user may cause.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from django.apps import apps
from django.db import connections, models, router

Row = TypeVar("Row", bound=models.Model)


class PrimaryQuerySet(models.QuerySet[Row]):
    """Uses the router's database for writes, unless `using` names another. See Note [Reads use the primary]."""

    @property
    def db(self) -> str:
        chosen: str | None = self._db  # type: ignore[attr-defined]
        return chosen or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]


def list_heirs(model: type[Row]) -> list[type[Row]]:
    """Return a model and its installed subclasses: Django sends signals of the class that is saved."""
    return [each for each in apps.get_models() if issubclass(each, model)]


class PrimaryModel(models.Model):
    """A row that is reloaded from its own database. See Note [Reads use the primary]."""

    class Meta:
        abstract = True

    def refresh_from_db(  # type: ignore[override]  # kwargs: `from_queryset`
        self, using: str | None = None, fields: Iterable[str] | None = None, **kwargs: Any
    ) -> None:
        super().refresh_from_db(using or self._state.db or router.db_for_write(type(self)), fields, **kwargs)


def lock_rows(rows: models.QuerySet[Row]) -> models.QuerySet[Row]:
    """Lock rows for writing, by primary key. On a database without row locks, this only sorts them."""
    return rows.order_by("pk").select_for_update(no_key=connections[rows.db].vendor == "postgresql")


def lock_to_delete(schedules: models.QuerySet[Any]) -> None:
    """Lock schedules before Django deletes what belongs to them; delete their former definitions and tags."""
    related = schedules.model._meta.get_field
    if connections[schedules.db].features.has_select_for_update:
        list(schedules.order_by("pk").select_for_update(of=("self",)).values_list("pk"))
    for name in ("definitions", "tags"):
        related(name).related_model._base_manager.using(schedules.db).filter(schedule__in=schedules).delete()
