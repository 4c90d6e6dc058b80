"""Reads from where it writes, also where a router sends reads to a replica. Decides nothing else.

Note [Primary]
A replica lags. A form filled from it would write old values back over new ones, a name taken a moment ago would pass
the form and end in an error of the database, and a page would not show what was just done. Schedules are few: nothing
is won by reading them elsewhere. Whoever wants the ledger from a replica says so: `Run.objects.using(alias)`.
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
        """The alias that is read and written."""
        chosen: str | None = self._db  # type: ignore[attr-defined]
        return chosen or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]


def heirs(model: type[Row]) -> list[type[Row]]:
    """Return a model and the installed ones that inherit from it: Django sends signals of the class that is saved."""
    return [each for each in apps.get_models() if issubclass(each, model)]


class PrimaryModel(models.Model):
    """A row that is read again from where it came from. See Note [Primary]."""

    class Meta:
        abstract = True

    def refresh_from_db(  # type: ignore[override]  # `from_queryset` is among them
        self, using: str | None = None, fields: Iterable[str] | None = None, **kwargs: Any
    ) -> None:
        """Read these fields again, by default all; Django calls it for fields that were not read yet, too."""
        super().refresh_from_db(using or self._state.db or router.db_for_write(type(self)), fields, **kwargs)
