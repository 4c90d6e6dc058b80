"""Failures that somebody has seen, and does not want to see again; see `failures/dismissing.py`."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..fields import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


class Dismissal(PrimaryModel):
    """A group of failures, by its digest: those up to `until` are dismissed, a later one shows the group again."""

    digest = models.CharField(max_length=32)
    until = UTCDateTimeField()
    by = models.CharField(max_length=200, blank=True)

    #: What people call the group.
    title = ""

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        verbose_name = _("dismissed failure")
        verbose_name_plural = _("dismissed failures")
        base_manager_name = "objects"
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=("digest",), name="delayq_dismissal_unique"),)

    def __str__(self) -> str:
        return self.title or f"{self.digest} {self.until:%Y-%m-%d %H:%M:%S} UTC"
