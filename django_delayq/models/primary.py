"""Reads from the database that is written to, even if a router sends reads to a replica.

Note [Primary]
A replica is behind. A form filled from it would overwrite new values with old ones, a name taken just before would pass
validation and fail in the database, and a page would not show the last change. Schedules are few, so that reading them
elsewhere gains nothing. To read the ledger from a replica, use `Run.objects.using(alias)`.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from django.apps import apps
from django.db import models, router

Row = TypeVar("Row", bound=models.Model)


class PrimaryQuerySet(models.QuerySet[Row]):
    """Uses the database that the router names for writes, unless `using` names another. See Note [Primary]."""

    @property
    def db(self) -> str:
        chosen: str | None = self._db  # type: ignore[attr-defined]
        return chosen or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]


def heirs(model: type[Row]) -> list[type[Row]]:
    """Return a model and its installed subclasses: Django sends signals of the class that is saved."""
    return [each for each in apps.get_models() if issubclass(each, model)]


class PrimaryModel(models.Model):
    """A row that is reloaded from its own database. See Note [Primary]."""

    class Meta:
        abstract = True

    def refresh_from_db(  # type: ignore[override]  # `from_queryset` is among them
        self, using: str | None = None, fields: Iterable[str] | None = None, **kwargs: Any
    ) -> None:
        """Reload these fields, by default all; Django also calls this for deferred fields."""
        super().refresh_from_db(using or self._state.db or router.db_for_write(type(self)), fields, **kwargs)
