"""Something that a person has ordered for many schedules at once; see `bulk_actions.py`."""

import zlib
from array import array
from collections.abc import Iterable
from typing import Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..fields import UTCDateTimeField, utcnow
from .primary import PrimaryModel, PrimaryQuerySet


class BulkActionQuerySet(PrimaryQuerySet["BulkAction"]):
    """Orders, by how far they are."""

    def open(self) -> Self:
        """Return those that are not carried out to their end, the oldest first."""
        return self.filter(finished_at=None).order_by("pk")


class BulkAction(PrimaryModel):
    """One of DO in `bulk_actions.py`, for `total` schedules, of which `done` are behind it and `changed` were there.

    `chosen` are their primary keys. An end that is not the wanted one has a reason: `cancelled`, or an `error`.
    """

    class Name(models.TextChoices):
        """What is done."""

        RUN_NOW = "run_now", _("Run now")
        PAUSE = "pause", _("Pause")
        RESUME = "resume", _("Resume")
        DELETE = "delete", _("Delete")

    name = models.CharField(max_length=16, choices=Name)
    reason = models.CharField(max_length=200, blank=True)
    #: What the history of each schedule says, and of whom: the key and the name of a user.
    logged = models.CharField(max_length=300)
    user_key = models.CharField(max_length=64, blank=True)
    user_name = models.CharField(max_length=200, blank=True)
    chosen = models.BinaryField()
    total = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    changed = models.PositiveIntegerField(default=0)
    created_at = UTCDateTimeField(default=utcnow)
    started_at = UTCDateTimeField(null=True)
    finished_at = UTCDateTimeField(null=True)
    cancelled = models.BooleanField(default=False)
    error = models.TextField(blank=True)

    objects = BulkActionQuerySet.as_manager()

    class Meta:
        verbose_name = _("bulk action")
        verbose_name_plural = _("bulk actions")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.done} of {self.total}"

    @classmethod
    def pack(cls, pks: Iterable[int]) -> bytes:
        """Return primary keys as `chosen` has them: a million in two megabytes."""
        return zlib.compress(array("q", pks).tobytes(), 1)

    def unpack(self) -> "array[int]":
        """Return the primary keys in their order."""
        pks = array("q")
        pks.frombytes(zlib.decompress(bytes(self.chosen)))
        return pks
