"""Records beside schedules and runs: output, counts and deletions; and the admin's overview page, which has no rows."""

from collections.abc import Iterable

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..recurrence.point import utcnow
from .columns import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet
from .versions import now_generation


class Output(PrimaryModel):
    """The end of what one attempt logged and printed, without secrets. Deleted with its run.

    Without a constraint in the database, so that SQL can delete runs. A full sweep deletes leftover rows.
    """

    run = models.ForeignKey(
        "django_delayq.Run", on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="outputs"
    )
    #: Number of the attempt as displayed: see `history.py`.
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
    """Counts of one task in `seconds` from `at` on. See `counters.py`, Note [Counters].

    `seconds` is 60, or 3600 for counts older than two days. `counts` is a `counters.Tally`.
    """

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
    """There is no table to read."""

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
