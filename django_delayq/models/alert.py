"""What was wrong and somebody was told of, or is to be: one row for each time that it went wrong."""

import uuid
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..recurrence.point import utcnow
from .fields import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


class AlertQuerySet(PrimaryQuerySet["Alert"]):
    """Alerts in the words of an operator."""

    def open(self) -> "AlertQuerySet":
        """Return those that stand, also those that nobody was told of yet."""
        return self.filter(recovered_at=None)


class Alert(PrimaryModel):
    """One state from its beginning to its end. `kind` and `subject` say which; while it stands it has one row.

    `since` is when it was seen first, `told_at` when it was told: in that transaction the jobs that deliver it were
    written. `gone_at` is when it was not seen for the first time, `recovered_at` when that was told. What was gone
    before it was told leaves no row. `sent` are the deliveries that were made, by `what channel`, each with its time.
    """

    OPENED: ClassVar[str] = "opened"
    RECOVERED: ClassVar[str] = "recovered"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(_("kind"), max_length=40)
    #: A queue, the key of a schedule, or '' where there is one only.
    subject = models.CharField(max_length=64, blank=True)
    #: What people call it.
    name = models.CharField(_("name"), max_length=200, blank=True)
    queue = models.CharField(_("queue"), max_length=64, blank=True)
    text = models.TextField(_("what it is"))
    since = UTCDateTimeField(_("since"), default=utcnow)
    told_at = UTCDateTimeField(_("told"), null=True)
    gone_at = UTCDateTimeField(null=True)
    recovered_at = UTCDateTimeField(_("recovered"), null=True)
    sent = models.JSONField(_("sent"), default=dict)
    #: True until it has recovered, then None, of which the constraint below allows any number.
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
