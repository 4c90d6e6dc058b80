from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField


class Migration(migrations.Migration):
    """What was counted, by the minute and the hour. Older versions leave it alone."""

    dependencies = [("django_delayq", "0005_attempts")]

    operations = [
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", UTCDateTimeField()),
                ("seconds", models.PositiveIntegerField()),
                ("kind", models.CharField(max_length=8)),
                ("queue", models.CharField(max_length=64)),
                ("task", models.CharField(blank=True, max_length=255)),
                ("counts", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name": "rollup",
                "verbose_name_plural": "rollups",
                "constraints": [
                    models.UniqueConstraint(fields=("seconds", "at", "kind", "queue", "task"), name="delayq_rollup_one")
                ],
            },
        ),
    ]
