from django.db import migrations, models
from django.db.models import Q

from django_delayq.indexes import AddIndexConcurrently, PrefixIndex


class Migration(migrations.Migration):
    """Indexes for the admin's filters, orders and searches, on PostgreSQL made while the tables are in use.

    Older versions leave them alone. Not atomic for that; after an interruption it is run again.
    """

    atomic = False
    dependencies = [("django_delayq", "0007_retention")]

    operations = [
        AddIndexConcurrently("schedule", models.Index(fields=["kind", "name"], name="delayq_schedule_kind")),
        AddIndexConcurrently("schedule", models.Index(fields=["queue", "name"], name="delayq_schedule_queue")),
        AddIndexConcurrently("schedule", models.Index(fields=["queue", "id"], name="delayq_schedule_by_queue")),
        AddIndexConcurrently(
            "schedule",
            models.Index(
                fields=["task", "backend", "priority"], name="delayq_schedule_handed_over", condition=~Q(backend="")
            ),
        ),
        AddIndexConcurrently("schedule", PrefixIndex(fields=["name"], name="delayq_schedule_name_prefix")),
        AddIndexConcurrently("schedule", PrefixIndex(fields=["task"], name="delayq_schedule_task_prefix")),
        AddIndexConcurrently(
            "schedulestate",
            models.Index(fields=["schedule"], name="delayq_state_failed", condition=Q(failing_streak__gt=0)),
        ),
        AddIndexConcurrently(
            "schedulestate", models.Index(fields=["last_outcome_at"], name="delayq_state_last_outcome")
        ),
        AddIndexConcurrently(
            "schedulestate",
            models.Index(
                fields=["condition", "schedule"], name="delayq_state_stopped", condition=~Q(condition="active")
            ),
        ),
        AddIndexConcurrently(
            "schedulestate",
            models.Index(
                fields=["last_status", "schedule"],
                name="delayq_state_last_status",
                condition=~Q(last_status="succeeded"),
            ),
        ),
        AddIndexConcurrently(
            "run",
            models.Index(
                fields=["status", "-due_at", "-id"], name="delayq_run_status", condition=~Q(status="succeeded")
            ),
        ),
        AddIndexConcurrently(
            "run",
            models.Index(fields=["origin", "-due_at", "-id"], name="delayq_run_ordered", condition=~Q(origin="due")),
        ),
    ]
