"""The ledger: runs and jobs. A row with an outcome changes only if its job is retried or its failure is dismissed."""

from datetime import datetime, timedelta
from typing import Any, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..calls.results import format_id
from ..conf import rules
from ..recurrence.point import to_ms, utcnow
from .columns import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


class Origin(models.TextChoices):
    DUE = "due", _("due")
    MANUAL = "manual", _("run now")
    BACKFILL = "backfill", _("backfill")
    JOB = "job", _("enqueued")


class Status(models.TextChoices):
    """`queued`, `running` and `retrying` are open; the others are outcomes, and final."""

    QUEUED = "queued", _("queued")
    RUNNING = "running", _("running")
    RETRYING = "retrying", _("retrying")
    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")
    SKIPPED = "skipped", _("skipped")
    LOST = "lost", _("lost")

    @property
    def is_open(self) -> bool:
        return self.value in OPEN


OPEN = frozenset(("queued", "running", "retrying"))
OUTCOMES = frozenset(rules.OUTCOMES)


class RunQuerySet(PrimaryQuerySet["Run"]):
    def open(self) -> Self:
        return self.filter(status__in=sorted(OPEN))

    def finished(self) -> Self:
        return self.filter(status__in=sorted(OUTCOMES))

    def request_stop(self, by: str = "") -> bool:
        """Request a stop of these runs, once each; `by` names the user. False if all have ended."""
        runs = self.open()
        values = {"stop_requested_at": utcnow(), "stop_requested_by": by[:200]}
        return bool(runs.filter(stop_requested_at=None).update(**values)) or runs.exists()


class RunProperties:
    """What follows from the columns of a run. Mixin for `Run` and for the workers' rows."""

    __slots__ = ()

    @classmethod
    def build_for(cls, schedule: Any, due_at: datetime, **values: Any) -> Self:
        """Return an unsaved row of this schedule with its present definition; `values` take precedence."""
        same = {name: getattr(schedule, name) for name in ("task", "queue", "generation", "priority")}
        new: Any = cls
        made: Self = new(schedule_id=schedule.pk, schedule_name=schedule.name, due_at=due_at, **{**same, **values})
        return made

    @property
    def title(self: Any) -> str:
        return str(self.schedule_name or self.task)

    @property
    def is_job(self: Any) -> bool:
        return bool(self.token)

    @property
    def result_id(self: Any) -> str:
        """The id of a job's result; '' for other runs."""
        return format_id(self.pk, self.token) if self.token else ""

    @property
    def idempotency_key(self: Any) -> str:
        """A text that is the same for all executions of a due point or a job, and unique to it."""
        return self.result_id or f"{self.schedule_id}:{self.origin}:{to_ms(self.due_at)}"

    @property
    def labels(self: Any) -> dict[str, str | int]:
        """The fields that identify an execution in log records and traces: task, queue, attempt, run or job."""
        names = {"task": self.task} if self.is_job else {"task": self.task, "schedule": self.schedule_name}
        kind = "job" if self.is_job else "run"
        return {**names, "queue": self.queue, kind: self.idempotency_key, "attempt": self.attempt}

    @property
    def latency(self: Any) -> timedelta | None:
        """Time from due point to claim; None before the claim, and for backfills, which are late on purpose."""
        return None if self.claimed_at is None or self.origin == Origin.BACKFILL else self.claimed_at - self.due_at

    @property
    def duration(self: Any) -> timedelta | None:
        """Duration of the last attempt; None before its end."""
        return None if self.started_at is None or self.finished_at is None else self.finished_at - self.started_at


class Run(RunProperties, PrimaryModel):
    """The outcome of one due point, of a skipped stretch, of a requested run, or of a job.

    A job has no schedule; `due_at` is its earliest start, and its outcome is kept until `expires_at`. `schedule` has no
    constraint in the database, so that a deletion neither breaks a batch being written nor deletes the history.
    """

    schedule = models.ForeignKey(
        "django_delayq.Schedule",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="runs",
        verbose_name=_("schedule"),
    )
    schedule_name = models.CharField(_("schedule name"), max_length=200, blank=True, default="", db_default="")
    task = models.CharField(_("task"), max_length=255)
    queue = models.CharField(_("queue"), max_length=64)
    generation = models.BigIntegerField(_("generation"), default=0, db_default=0)
    origin = models.CharField(_("origin"), max_length=8, choices=Origin, default=Origin.DUE)
    #: Has a member of its own in Redis: jobs, requested runs, and points of a schedule whose runs may overlap.
    separate = models.BooleanField(default=False, editable=False)
    due_at = UTCDateTimeField(_("due"))
    status = models.CharField(_("status"), max_length=16, choices=Status)
    reason = models.CharField(_("reason"), max_length=200, blank=True, default="", db_default="")
    #: Attempts made so far: 1 after the first one ended. A take-over after a crash is not a new attempt.
    attempt = models.PositiveSmallIntegerField(_("attempt"), default=0, db_default=0)
    reclaims = models.PositiveSmallIntegerField(_("reclaims"), default=0, db_default=0)
    fence = models.CharField(_("fence"), max_length=64, blank=True, default="", db_default="")
    claimed_at = UTCDateTimeField(_("claimed"), null=True)
    started_at = UTCDateTimeField(_("started"), null=True)
    finished_at = UTCDateTimeField(_("finished"), null=True)
    worker = models.CharField(_("worker"), max_length=128, blank=True, default="", db_default="")
    error = models.TextField(_("error"), blank=True, default="", db_default="")
    result = models.JSONField(_("result"), null=True)
    #: The attempts before the last one (`calls/attempt.py`), or None.
    attempts = models.JSONField(null=True, editable=False)
    #: The last point of a skipped stretch.
    last_due_at = UTCDateTimeField(_("last due"), null=True)
    #: Due points in this row; 0 = unknown (left by a replaced definition).
    points = models.PositiveIntegerField(_("points"), default=1, db_default=1)
    created_at = UTCDateTimeField(default=utcnow, editable=False)
    # Columns of jobs. Of these, due points have only `priority`, requested runs also `options`.
    #: 132 random bits. With the primary key they form the id of a job's result, which cannot be guessed.
    token = models.CharField(max_length=22, blank=True, default="", db_default="", editable=False)
    #: The alias in `TASKS`.
    backend = models.CharField(_("backend"), max_length=255, blank=True, default="", db_default="")
    priority = models.SmallIntegerField(_("priority"), default=0, db_default=0)
    #: {"args": […], "kwargs": {…}}
    call = models.JSONField(_("arguments"), null=True)
    #: Attempts, timeout and callbacks of the call or its task (`calls/task_options.py`); the trace of a requested run.
    options = models.JSONField(null=True, editable=False)
    #: The hash of the unique key, while the job holds it.
    unique_key = models.CharField(max_length=32, null=True, editable=False)  # noqa: DJ001 - empty ones would collide
    #: The result is gone from then on; a worker deletes the row.
    expires_at = UTCDateTimeField(null=True, editable=False)
    #: Failures up to then are dismissed: see `monitoring/failures.py`, Note [New failures undo a dismissal].
    dismissed_until = UTCDateTimeField(null=True, editable=False)
    #: When a stop was requested, and by which user. It outlives the worker, and ends with a retry of the job.
    stop_requested_at = UTCDateTimeField(null=True, editable=False)
    stop_requested_by = models.CharField(max_length=200, blank=True, default="", db_default="", editable=False)

    objects = RunQuerySet.as_manager()

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        # `change` covers cancelling, moving and retrying jobs; `delete` covers deleting failed jobs.
        default_permissions = ("view", "change", "delete")
        permissions = (("view_job_arguments", "Can see the arguments of jobs"), ("stop_run", "Can stop running runs"))
        ordering = ("-pk",)
        constraints = (
            models.UniqueConstraint(fields=("schedule", "due_at", "origin"), name="delayq_run_one_per_point"),
            models.UniqueConstraint(fields=("unique_key",), name="delayq_run_unique_key"),
        )
        # A database without partial indexes has full ones, which serve the same queries.
        indexes = (
            models.Index(
                fields=("schedule", "due_at"),
                name="delayq_run_open",
                condition=Q(schedule__isnull=False, status__in=("queued", "running", "retrying")),
            ),
            models.Index(fields=("status", "id"), name="delayq_run_status", condition=~Q(status="succeeded")),
            models.Index(
                fields=("origin", "id"), name="delayq_run_ordered", condition=Q(origin__in=("manual", "backfill"))
            ),
            models.Index(fields=("expires_at",), name="delayq_run_expires", condition=Q(expires_at__isnull=False)),
        )

    def __str__(self) -> str:
        return f"{self.title} {self.due_at:%Y-%m-%d %H:%M:%S} UTC {self.status}"

    def cancel(self, by: str = "") -> bool:
        """Request a stop of its execution; `by` names the user. False if it has already ended.

        Within about 2 s the worker raises `TaskCancelled` in the task, and the run is recorded as failed (cancelled)
        without another attempt. Code that waits in C is not interrupted: after `timeout_grace_seconds` the run is
        recorded anyway, and its process replaced. A waiting run or retry is stopped once it has run for a second.
        """
        return Run.objects.filter(pk=self.pk).request_stop(by)
