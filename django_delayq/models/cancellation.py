"""What people have asked to be stopped while it runs. The row is the request: whoever executes it looks for it."""

from datetime import timedelta
from typing import Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..recurrence.point import utcnow
from .fields import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet

#: For so long a request is kept; what it was about has ended by then, or was stopped by whoever took it over.
KEPT = timedelta(days=1)


class CancellationQuerySet(PrimaryQuerySet["Cancellation"]):
    """Requests."""

    def ask(self, run: int, by: str = "") -> Self:
        """Ask for a stop of the run with this primary key, once; forget old requests."""
        self.filter(asked_at__lt=utcnow() - KEPT).delete()
        self.get_or_create(run=run, defaults={"asked_by": by[:200]})
        return self


class Cancellation(PrimaryModel):
    """One request; `run` is the primary key of the row.

    Within about a second the worker that executes it raises `TaskCancelled` in the task. The request stands for KEPT,
    so whoever takes over from a worker that is killed follows it too.
    """

    run = models.BigIntegerField(primary_key=True)
    asked_at = UTCDateTimeField(default=utcnow)
    asked_by = models.CharField(max_length=200, blank=True)

    objects = CancellationQuerySet.as_manager()

    class Meta:
        verbose_name = _("stop of what runs")
        verbose_name_plural = _("stops of what runs")
        default_permissions = ("add",)
        base_manager_name = "objects"

    def __str__(self) -> str:
        return f"run {self.run}"
