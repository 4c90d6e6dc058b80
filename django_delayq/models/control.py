"""What people hold back: a queue or a task that is paused, a queue of which only so many run at a time."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..calls.registry import current_name, get_task
from ..conf import get_config
from ..exceptions import UnknownTask
from ..recurrence.point import utcnow
from .fields import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


def _shown(instant: datetime) -> str:
    """Return an instant in the current zone, to the minute."""
    return f"{timezone.localtime(instant):%Y-%m-%d %H:%M}"


class ControlQuerySet(PrimaryQuerySet["Control"]):
    """Pauses and limits."""

    def in_force(self, now: datetime | None = None) -> "ControlQuerySet":
        """Return those that hold something back, by kind and name."""
        paused = Q(paused=True) & (Q(until=None) | Q(until__gt=now or utcnow()))
        return self.filter(paused | Q(most__isnull=False)).order_by("kind", "name")


class Control(PrimaryModel):
    """One queue or task. Workers read it before they claim, and at most half a second before they start anything.

    While `paused`, up to `until` if there is one, nothing of it starts; what runs goes on. Due points and jobs wait
    where they are, and afterwards `missed` decides on points that are late by then. `most` is a limit: of a queue in
    one shard no more hold a lease at a time, so no more run. In several shards each has its part, rounded down, but at
    least one. Whose lease ends without a renewal does not count any more.
    """

    class Kind(models.TextChoices):
        """What is held back."""

        QUEUE = "queue", _("queue")
        TASK = "task", _("task")

    kind = models.CharField(_("kind"), max_length=8, choices=Kind, default=Kind.QUEUE)
    name = models.CharField(_("name"), max_length=255, help_text=_("The name of a queue, or the path of a task."))
    paused = models.BooleanField(_("paused"), default=False, help_text=_("Nothing of it starts; what runs goes on."))
    until = UTCDateTimeField(_("until"), null=True, blank=True, help_text=_("Then it goes on by itself."))
    reason = models.CharField(_("reason"), max_length=200, blank=True, help_text=_("Shown wherever it matters."))
    most = models.PositiveIntegerField(
        _("at a time"), null=True, blank=True, help_text=_("So many of the queue run at a time; empty for any number.")
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
    def standing(self) -> str:
        """What it holds back now, in words; '' for nothing."""
        limit = "" if self.most is None else _("%(count)d at a time") % {"count": self.most}
        return ", ".join(filter(None, [self.pause, limit]))

    @property
    def pause(self) -> str:
        """The pause in words, such as "paused (smtp down) by admin"; '' while there is none."""
        if not self.is_paused():
            return ""
        until = _("until %(time)s") % {"time": _shown(self.until)} if self.until else ""
        reason = f"({self.reason})" if self.reason else ""
        user = _("by %(user)s") % {"user": self.changed_by} if self.changed_by else ""
        return " ".join(filter(None, [str(_("paused")), until, reason, user]))

    def concerns(self, queue: str, task: str) -> bool:
        """Say whether this is about what runs in this queue, or is of this task."""
        if self.kind == self.Kind.QUEUE:
            return self.name == queue
        return current_name(self.name) == current_name(task)

    def clean(self) -> None:
        """Refuse what would hold nothing back; a row that is there may be about what is there no more."""
        wrong: dict[str, Any] = {}
        if not self.pk and (unknown := self._unknown()):
            wrong["name"] = unknown
        if self.kind == self.Kind.TASK and self.most is not None:
            wrong["most"] = _("Only a queue has a limit; give the task a queue of its own.")
        if self.paused and self.until is not None and self.until <= utcnow():
            wrong["until"] = _("That time has passed.")
        if wrong:
            raise ValidationError(wrong)

    def _unknown(self) -> Any:
        """Say that there is no such queue or task; '' where there is."""
        if self.kind == self.Kind.TASK:
            try:
                get_task(self.name)
            except UnknownTask as error:
                return str(error)
            return ""
        queues = get_config().queues
        values = {"name": self.name, "known": ", ".join(queues)}
        return "" if self.name in queues else _("There is no queue %(name)s; there are: %(known)s.") % values

    def is_paused(self, now: datetime | None = None) -> bool:
        """Say whether nothing of it starts at that time, by default now."""
        return self.paused and (self.until is None or self.until > (now or utcnow()))


def explain_wait(rows: Iterable[Control], of: tuple[str, str] | None = None) -> str:
    """Return "waits: queue mail is paused (smtp down) by admin"; '' where none of the rows is a pause.

    With `of`, a queue and a task, only pauses of these count. A limit is not a pause. Each page and command that
    explains why due work does not start uses these words.
    """
    held = [row for row in rows if row.is_paused() and (of is None or row.concerns(*of))]
    pauses = [_("%(what)s is %(how)s") % {"what": row, "how": row.pause} for row in held]
    return _("waits: %(pauses)s") % {"pauses": "; ".join(pauses)} if pauses else ""
