"""Pauses of queues and tasks, and limits of queues."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..calls.registry import get_task, resolve_path
from ..conf import get_config
from ..exceptions import UnknownTask
from ..recurrence.point import utcnow
from .columns import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


class ControlQuerySet(PrimaryQuerySet["Control"]):
    def in_force(self, now: datetime | None = None) -> "ControlQuerySet":
        """Return the rows in force at `now`, by kind and name."""
        paused = Q(paused=True) & (Q(until=None) | Q(until__gt=now or utcnow()))
        return self.filter(paused | Q(most__isnull=False)).order_by("kind", "name")


class Control(PrimaryModel):
    """One queue or task; see `actions.pause` and `actions.limit`. Workers read it at most 0.5 s before a start."""

    class Target(models.TextChoices):
        QUEUE = "queue", _("queue")
        TASK = "task", _("task")

    kind = models.CharField(_("kind"), max_length=8, choices=Target, default=Target.QUEUE)
    name = models.CharField(_("name"), max_length=255, help_text=_("The name of a queue, or the path of a task."))
    paused = models.BooleanField(_("paused"), default=False, help_text=_("Nothing new starts; running tasks continue."))
    until = UTCDateTimeField(_("until"), null=True, blank=True, help_text=_("It resumes by itself at this time."))
    reason = models.CharField(_("reason"), max_length=200, blank=True, help_text=_("Shown to users as the reason."))
    most = models.PositiveIntegerField(
        _("at a time"),
        null=True,
        blank=True,
        help_text=_("Maximum number of running tasks of the queue. Empty: no limit."),
    )
    changed_at = UTCDateTimeField(_("changed"), default=utcnow, editable=False)
    changed_by = models.CharField(_("by"), max_length=200, blank=True, editable=False)

    objects = ControlQuerySet.as_manager()

    class Meta:
        verbose_name = _("pause or limit")
        verbose_name_plural = _("pauses and limits")
        base_manager_name = "objects"
        constraints = (models.UniqueConstraint(fields=("kind", "name"), name="delayq_control_unique"),)

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.name}"

    @property
    def restrictions(self) -> str:
        """The pause and the limit in force, in words; '' for none."""
        limit = "" if self.most is None else _("%(count)d at a time") % {"count": self.most}
        return ", ".join(filter(None, [self.pause, limit]))

    @property
    def pause(self) -> str:
        """The pause in words, such as "paused (smtp down) by admin"; '' if not paused."""
        if not self.is_paused():
            return ""
        until = _("until %(time)s") % {"time": f"{timezone.localtime(self.until):%Y-%m-%d %H:%M}"} if self.until else ""
        reason = f"({self.reason})" if self.reason else ""
        user = _("by %(user)s") % {"user": self.changed_by} if self.changed_by else ""
        return " ".join(filter(None, [str(_("paused")), until, reason, user]))

    def is_about(self, queue: str, task: str) -> bool:
        """Return whether this row applies to a run of this task in this queue."""
        if self.kind == self.Target.QUEUE:
            return self.name == queue
        return resolve_path(self.name) == resolve_path(task)

    def clean(self) -> None:
        wrong: dict[str, Any] = {}
        if not self.pk and (unknown := self._explain_unknown()):  # the target of an existing row may no longer exist
            wrong["name"] = unknown
        if self.kind == self.Target.TASK and self.most is not None:
            wrong["most"] = _("Only a queue can have a limit; give the task a queue of its own.")
        if self.paused and self.until is not None and self.until <= utcnow():
            wrong["until"] = _("This time is in the past. Choose a later one.")
        if wrong:
            raise ValidationError(wrong)

    def _explain_unknown(self) -> Any:
        if self.kind == self.Target.TASK:
            try:
                get_task(self.name)
            except UnknownTask as error:
                return str(error)
            return ""
        queues = get_config().queues
        values = {"name": self.name, "known": ", ".join(queues)}
        return "" if self.name in queues else _("Queue %(name)s does not exist. The queues are %(known)s.") % values

    def is_paused(self, now: datetime | None = None) -> bool:
        """Return whether nothing starts at `now`, by default the present time."""
        return self.paused and (self.until is None or self.until > (now or utcnow()))


def explain_wait(rows: Iterable[Control], of: tuple[str, str] | None = None) -> str:
    """Return "waits: queue mail is paused by admin", or ''. With `of`, (queue, task), only their pauses count."""
    held = [row for row in rows if row.is_paused() and (of is None or row.is_about(*of))]
    pauses = [_("%(what)s is %(how)s") % {"what": row, "how": row.pause} for row in held]
    return _("waits: %(pauses)s") % {"pauses": "; ".join(pauses)} if pauses else ""
