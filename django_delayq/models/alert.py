"""Alerts: one row for each occurrence of a problem."""

import uuid
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..recurrence.point import utcnow
from .columns import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


class AlertQuerySet(PrimaryQuerySet["Alert"]):
    def open(self) -> "AlertQuerySet":
        """Return the problems that have not recovered, including those not reported yet."""
        return self.filter(recovered_at=None)


class Alert(PrimaryModel):
    """One problem from beginning to end, identified by `kind` and `subject`. An open problem has one row.

    `since` is when it was first seen, `told_at` when it was reported: that transaction writes the jobs that deliver the
    message. `gone_at` is when it was first not seen, `recovered_at` when the recovery was reported. A problem that ends
    before it is reported leaves no row. `sent` has the time of each delivery, by "what channel".
    """

    OPENED: ClassVar[str] = "opened"
    RECOVERED: ClassVar[str] = "recovered"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(_("kind"), max_length=40)
    #: A queue, the key of a schedule, or '' if the kind has only one subject.
    subject = models.CharField(max_length=64, blank=True)
    #: The display name of the subject.
    name = models.CharField(_("name"), max_length=200, blank=True)
    queue = models.CharField(_("queue"), max_length=64, blank=True)
    text = models.TextField(_("what it is"))
    since = UTCDateTimeField(_("since"), default=utcnow)
    told_at = UTCDateTimeField(_("told"), null=True)
    gone_at = UTCDateTimeField(null=True)
    recovered_at = UTCDateTimeField(_("recovered"), null=True)
    sent = models.JSONField(_("sent"), default=dict)
    #: None after recovery, so that the unique constraint allows any number of recovered rows.
    is_open = models.BooleanField(null=True, default=True, editable=False)

    objects = AlertQuerySet.as_manager()

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("sent alerts")
        ordering = ("-since",)
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints = (models.UniqueConstraint(fields=("kind", "subject", "is_open"), name="delayq_alert_once"),)
        indexes = (models.Index(fields=("recovered_at",), name="delayq_alert_recovered"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()
