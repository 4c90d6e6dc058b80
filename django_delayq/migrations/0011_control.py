from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField, utcnow


class Migration(migrations.Migration):
    """What people hold back. Older versions leave it alone, and their workers do not heed it."""

    dependencies = [("django_delayq", "0010_overview")]

    operations = [
        migrations.CreateModel(
            name="Control",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[("queue", "queue"), ("task", "task")],
                        default="queue",
                        max_length=8,
                        verbose_name="kind",
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        help_text="The name of a queue, or the path of a task.", max_length=255, verbose_name="name"
                    ),
                ),
                (
                    "paused",
                    models.BooleanField(
                        default=False, help_text="Nothing of it starts; what runs goes on.", verbose_name="paused"
                    ),
                ),
                (
                    "until",
                    UTCDateTimeField(
                        blank=True, help_text="Then it goes on by itself.", null=True, verbose_name="until"
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True, help_text="Shown wherever it matters.", max_length=200, verbose_name="reason"
                    ),
                ),
                (
                    "most",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="So many of the queue run at a time; empty for any number.",
                        null=True,
                        verbose_name="at a time",
                    ),
                ),
                ("changed_at", UTCDateTimeField(default=utcnow, editable=False, verbose_name="changed")),
                ("changed_by", models.CharField(blank=True, editable=False, max_length=200, verbose_name="by")),
            ],
            options={
                "verbose_name": "pause or limit",
                "verbose_name_plural": "pauses and limits",
                "base_manager_name": "objects",
                "constraints": (models.UniqueConstraint(fields=("kind", "name"), name="delayq_control_unique"),),
            },
        ),
    ]
