from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField

KEEP = [
    ("", "as the setting says"), ("all", "all, for ever"), ("failures", "failed and lost ones only"),
    ("last", "the newest ones only"), ("none", "the newest one only"),
]  # fmt: skip


class Migration(migrations.Migration):
    """How long runs are kept, by schedule; up to where they were pruned. Older versions leave all three alone."""

    dependencies = [("django_delayq", "0006_rollup")]

    operations = [
        migrations.AddField(
            "schedule",
            "keep",
            models.CharField(
                blank=True, choices=KEEP, db_default="", default="", max_length=8, verbose_name="keep of its runs"
            ),
        ),
        migrations.AddField(
            "schedule",
            "keep_last",
            models.PositiveIntegerField(blank=True, null=True, verbose_name="so many of the newest"),
        ),
        migrations.AddField("schedulestate", "pruned_until", UTCDateTimeField(null=True)),
    ]
