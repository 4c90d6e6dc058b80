"""Jobs that stand in the database: durable ones from their enqueueing on, others from their end where so configured."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..fields import UTCDateTimeField, utcnow
from ..jobs import result_id
from .primary import PrimaryModel, PrimaryQuerySet


class JobStatus(models.TextChoices):
    """In the words of Django's tasks. `READY` waits, also for another attempt, or has only just begun."""

    READY = "READY", _("waiting")
    RUNNING = "RUNNING", _("running")
    SUCCESSFUL = "SUCCESSFUL", _("successful")
    FAILED = "FAILED", _("failed")


OPEN_JOBS = frozenset(("READY", "RUNNING"))


class Job(PrimaryModel):
    """One enqueued call and what has become of it. `call` and `state` are the lines of `jobs.record`, unsigned.

    The row is the truth of a durable job: Redis holds an entry of it, made of `call`, that may be lost at any time.
    """

    #: Its member in Redis; the id of its result is made of it and the queue.
    member = models.CharField(max_length=23)
    queue = models.CharField(_("queue"), max_length=64)
    backend = models.CharField(_("backend"), max_length=255)
    task = models.CharField(_("task"), max_length=255)
    priority = models.SmallIntegerField(_("priority"), default=0)
    status = models.CharField(_("status"), max_length=16, choices=JobStatus, default=JobStatus.READY)
    #: Attempts that were recorded.
    attempt = models.PositiveIntegerField(_("attempt"), default=0)
    #: Take-overs since the last recorded attempt.
    reclaims = models.PositiveIntegerField(_("reclaims"), default=0)
    #: Of the lease under which it was written last: when that was claimed, and by which worker.
    fence = models.CharField(_("fence"), max_length=255, blank=True, default="")
    #: The hash of its unique key, until a worker takes it for the first time.
    unique = models.CharField(max_length=22, blank=True, default="")
    #: False until a sweep has seen to it that Redis has it; the fast path writes no row for that.
    mirrored = models.BooleanField(default=False)
    #: It does not start before.
    wakes_at = UTCDateTimeField(_("not before"), default=utcnow)
    enqueued_at = UTCDateTimeField(_("enqueued"), default=utcnow)
    finished_at = UTCDateTimeField(_("finished"), null=True)
    #: When the last attempt of a durable job failed: it is dead, until somebody revives or deletes it. Plain jobs are
    #: dead in Redis, and what was cancelled is not dead.
    died_at = UTCDateTimeField(null=True)
    #: From then on there is no such result; the next full sweep deletes the row.
    expires_at = UTCDateTimeField(null=True)
    call = models.TextField()
    state = models.TextField(blank=True, default="")

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        verbose_name = _("durable job")
        verbose_name_plural = _("durable jobs")
        ordering = ("-pk",)
        constraints = (
            models.UniqueConstraint(fields=("member",), name="delayq_job_member"),
            models.UniqueConstraint(
                fields=("queue", "unique"), name="delayq_job_unique_key", condition=~models.Q(unique="")
            ),
        )
        indexes = (
            models.Index(fields=("id",), name="delayq_job_unmirrored", condition=models.Q(mirrored=False)),
            models.Index(fields=("id",), name="delayq_job_open", condition=models.Q(status__in=("READY", "RUNNING"))),
            models.Index(
                fields=("expires_at",), name="delayq_job_expires", condition=models.Q(expires_at__isnull=False)
            ),
            models.Index(
                fields=("queue", "died_at", "id"), name="delayq_job_dead", condition=models.Q(died_at__isnull=False)
            ),
            models.Index(
                fields=("queue", "finished_at", "id"),
                name="delayq_job_succeeded",
                condition=models.Q(status="SUCCESSFUL"),
            ),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.result_id} {self.status}"

    @property
    def result_id(self) -> str:
        """The id of its result."""
        return result_id(self.queue, self.member)
