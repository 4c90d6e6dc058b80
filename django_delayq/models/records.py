"""What executions have logged and printed, beside the row that has their outcome; see `capture.py`."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..recurrence.point import utcnow
from .fields import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet
from .versions import now_generation


class Output(PrimaryModel):
    """The last of what one attempt at a run has said, without secrets. Goes with that row.

    Without a constraint in the database: SQL that deletes runs must not be refused for its sake. What that leaves a
    full sweep deletes.
    """

    run = models.ForeignKey(
        "django_delayq.Run", on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="outputs"
    )
    #: Its number among the attempts as people are shown them: see `history.py`.
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
    """What was counted of one task in `seconds` from `at` on. See `counters.py`, Note [Counters].

    `seconds` is 60 or, for what is older than two days, 3600. `counts` is a `counters.Tally`.
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
    """The member of a deleted schedule, or that of a moved one in its old queue, which must leave Redis."""

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


class Declaration(PrimaryModel):
    """Written by the sync of declared schedules, in the transaction in which it writes the schedule.

    A schedule without one was made by hand.
    """

    schedule = models.OneToOneField(
        "django_delayq.Schedule", on_delete=models.CASCADE, primary_key=True, related_name="declaration"
    )
    key = models.CharField(max_length=200, unique=True)
    #: When a sync found it gone from the code; null while the code has it.
    gone_at = UTCDateTimeField(null=True)

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"  # so that `schedule.declaration` is read by it

    def __str__(self) -> str:
        return f"declared as {self.key}"


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
