"""What workers know of a schedule. Narrow, and separate from the row that users edit."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .columns import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


class Condition(models.TextChoices):
    ACTIVE = "active", _("active")
    FINISHED = "finished", _("finished")
    BROKEN = "broken", _("broken")


class ScheduleState(PrimaryModel):
    """Written in the transaction of the outcomes in the ledger. A schedule that never ran may have no row."""

    schedule = models.OneToOneField(
        "django_delayq.Schedule", on_delete=models.CASCADE, primary_key=True, related_name="state"
    )
    #: Every due point up to this one is decided, except for open rows of the ledger.
    last_due_at = UTCDateTimeField(null=True)
    #: The first undecided due point under the last synced definition.
    next_due_at = UTCDateTimeField(null=True)
    last_status = models.CharField(max_length=16, blank=True, default="")
    #: When `last_status` was decided: by the worker's clock after an execution, else mostly by Redis' clock.
    last_outcome_at = UTCDateTimeField(null=True)
    last_latency_ms = models.BigIntegerField(null=True)
    #: End of the last run of a due point; requested runs do not count. Fixed delays and overlap begin there.
    last_finished_at = UTCDateTimeField(null=True)
    #: Start of the unbroken busy stretch that ended at `last_finished_at`.
    busy_from = UTCDateTimeField(null=True)
    #: Runs since the last success; 0 after a success.
    failing_streak = models.PositiveIntegerField(default=0)
    #: Executed due points; skips, retries and requested runs do not count.
    run_count = models.PositiveIntegerField(default=0)
    condition = models.CharField(max_length=16, choices=Condition, default=Condition.ACTIVE)
    condition_reason = models.CharField(max_length=500, blank=True, default="")
    #: Outcomes of due points up to this one may be incomplete: rows were pruned.
    pruned_until = UTCDateTimeField(null=True)
    mirrored_digest = models.CharField(max_length=64, blank=True, default="")

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"  # reads `schedule.state`
        indexes = (
            models.Index(fields=("next_due_at",), name="delayq_state_next_due"),
            models.Index(fields=("failing_streak",), name="delayq_state_failing", condition=Q(failing_streak__gt=0)),
            models.Index(fields=("schedule",), name="delayq_state_failed", condition=Q(failing_streak__gt=0)),
            models.Index(fields=("last_outcome_at",), name="delayq_state_last_outcome"),
            models.Index(
                fields=("condition", "schedule"), name="delayq_state_stopped", condition=~Q(condition=Condition.ACTIVE)
            ),
            models.Index(
                fields=("last_status", "schedule"),
                name="delayq_state_last_status",
                condition=~Q(last_status="succeeded"),
            ),
        )

    def __str__(self) -> str:
        return f"state of schedule {self.schedule_id}"
