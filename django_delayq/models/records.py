"""Records beside schedules and runs: output, counts, deletions, tags, alerts; and the admin's page without rows."""

import uuid
from collections.abc import Iterable
from typing import ClassVar

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..recurrence.point import utcnow
from .columns import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet
from .versions import now_generation


class Output(PrimaryModel):
    """The end of what one attempt logged and printed, without secrets. Sweeps delete outputs whose runs SQL deleted."""

    run = models.ForeignKey(
        "django_delayq.Run", on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="outputs"
    )
    #: Number of the attempt as displayed: see `calls/attempt.py`.
    attempt = models.PositiveIntegerField(_("attempt"))
    text = models.TextField(_("output"))

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        verbose_name = _("output")
        verbose_name_plural = _("outputs")
        base_manager_name = "objects"
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=("run", "attempt"), name="delayq_output_of_run"),)

    def __str__(self) -> str:
        return f"attempt {self.attempt}"


class Rollup(PrimaryModel):
    """Counts (a `Tally`) of one task in `seconds`, 60 or 3600, from `at` on. See Note [Counts are approximate]."""

    at = UTCDateTimeField()
    seconds = models.PositiveIntegerField()
    kind = models.CharField(max_length=8)
    queue = models.CharField(max_length=64)
    task = models.CharField(max_length=255, blank=True)
    counts = models.JSONField(default=dict)

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        verbose_name = _("rollup")
        verbose_name_plural = _("rollups")
        constraints = (
            models.UniqueConstraint(fields=("seconds", "at", "kind", "queue", "task"), name="delayq_rollup_one"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.task} in {self.queue}, {self.seconds} s from {self.at:%Y-%m-%d %H:%M} UTC"


class Tombstone(PrimaryModel):
    """A member to remove from Redis: of a deleted schedule, or of a moved one in its old queue."""

    member = models.CharField(max_length=64)
    queue = models.CharField(max_length=64)
    generation = models.BigIntegerField()
    created_at = UTCDateTimeField(default=utcnow)

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.member} in {self.queue}"

    @classmethod
    def add(cls, entries: Iterable[tuple[int, str, int]], *, using: str) -> None:
        """Record (schedule pk, queue, generation) as gone, in the current transaction."""
        cls._base_manager.using(using).bulk_create(
            [
                cls(member=f"s{pk}", queue=queue, generation=max(generation + 1, now_generation()))
                for pk, queue, generation in entries
            ]
        )


class NoRows(models.Manager["Overview"]):
    def get_queryset(self) -> "models.QuerySet[Overview]":
        return super().get_queryset().none()


class Overview(models.Model):
    """The overview page, listed by the admin among the models. Users with `view_schedule` may view it."""

    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ()
        verbose_name = _("at a glance")
        verbose_name_plural = _("at a glance")

    def __str__(self) -> str:
        return str(self._meta.verbose_name)


MOST_CHARS, MOST_TAGS = 50, 20


def read_tags(text: str) -> list[str]:
    """Return the tags of a text such as `billing, nightly`, unique, in lower case, sorted; or raise ValidationError."""
    names = sorted({" ".join(part.split()).lower() for part in text.split(",")} - {""})
    for name in names:
        if len(name) > MOST_CHARS:
            raise ValidationError(
                gettext("“%(name)s” is longer than %(most)d characters.") % {"name": name, "most": MOST_CHARS}
            )
    if len(names) > MOST_TAGS:
        text = gettext("These are %(count)d tags; at most %(most)d are allowed.")
        raise ValidationError(text % {"count": len(names), "most": MOST_TAGS})
    return names


class TagQuerySet(PrimaryQuerySet["Tag"]):
    def put(self, schedule: models.Model, names: Iterable[str]) -> list[str]:
        """Replace the tags of a schedule; return them in the form of `read_tags`."""
        wanted = read_tags(",".join(names))
        rows = self.filter(schedule=schedule.pk)
        with transaction.atomic(using=self.db):
            rows.exclude(name__in=wanted).delete()
            self.bulk_create([self.model(schedule_id=schedule.pk, name=name) for name in wanted], ignore_conflicts=True)
        return wanted


class Tag(PrimaryModel):
    #: `lock_to_delete` deletes tags with the schedule; rows that SQL leaves behind do no harm.
    schedule = models.ForeignKey(
        "django_delayq.Schedule", on_delete=models.DO_NOTHING, related_name="tags", db_constraint=False, db_index=False
    )
    name = models.CharField(_("tag"), max_length=MOST_CHARS)

    objects = TagQuerySet.as_manager()

    class Meta:
        verbose_name = _("tag")
        verbose_name_plural = _("tags")
        base_manager_name = "objects"
        default_permissions = ()
        ordering = ("name",)
        constraints = (models.UniqueConstraint(fields=("schedule", "name"), name="delayq_tag_unique"),)
        indexes = (models.Index(fields=("name", "schedule"), name="delayq_tag_name"),)

    def __str__(self) -> str:
        return self.name


class AlertQuerySet(PrimaryQuerySet["Alert"]):
    def open(self) -> "AlertQuerySet":
        """Return the problems that have not recovered, including those not reported yet."""
        return self.filter(recovered_at=None)


class Alert(PrimaryModel):
    """One problem from beginning to end, identified by `kind` and `subject`. An open problem has one row.

    `gone_at` is the time of the first check that did not find the problem, `recovered_at` that of the report. A problem
    that ends before it is reported leaves no row. `sent` has the time of each delivery, by "<what> <channel>".
    """

    OPENED: ClassVar[str] = "opened"
    RECOVERED: ClassVar[str] = "recovered"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(_("kind"), max_length=40)
    #: A queue, the key of a schedule, or '' if the kind has only one subject.
    subject = models.CharField(max_length=64, blank=True)
    name = models.CharField(_("name"), max_length=200, blank=True)
    queue = models.CharField(_("queue"), max_length=64, blank=True)
    text = models.TextField(_("problem"))
    since = UTCDateTimeField(_("since"), default=utcnow)
    reported_at = UTCDateTimeField(_("notified"), null=True)
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
