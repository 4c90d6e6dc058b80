from django.db import migrations


class Migration(migrations.Migration):
    """Names and permissions only; no table changes."""

    dependencies = [("django_delayq", "0013_dismissal")]

    operations = [
        migrations.AlterModelOptions(
            name="job",
            options={"ordering": ("-pk",), "verbose_name": "durable job", "verbose_name_plural": "durable jobs"},
        ),
        migrations.AlterModelOptions(
            name="schedule",
            options={
                "ordering": ("name",),
                "permissions": (
                    ("run_schedule", "Can run schedules now, and backfill them"),
                    ("pause_schedule", "Can pause and resume schedules"),
                ),
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
            },
        ),
    ]
