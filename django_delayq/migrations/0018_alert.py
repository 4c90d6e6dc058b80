import uuid

from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField, utcnow


class Migration(migrations.Migration):
    """What was wrong and is told, and by when a schedule is to succeed. Older versions leave both alone."""

    dependencies = [("django_delayq", "0017_output")]

    operations = [
        migrations.CreateModel(
            name="Alert",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("kind", models.CharField(max_length=40, verbose_name="kind")),
                ("subject", models.CharField(blank=True, max_length=64)),
                ("name", models.CharField(blank=True, max_length=200, verbose_name="name")),
                ("queue", models.CharField(blank=True, max_length=64, verbose_name="queue")),
                ("text", models.TextField(verbose_name="what it is")),
                ("since", UTCDateTimeField(default=utcnow, verbose_name="since")),
                ("told_at", UTCDateTimeField(null=True, verbose_name="told")),
                ("gone_at", UTCDateTimeField(null=True)),
                ("recovered_at", UTCDateTimeField(null=True, verbose_name="recovered")),
                ("sent", models.JSONField(default=dict, verbose_name="sent")),
            ],
            options={
                "verbose_name": "alert",
                "verbose_name_plural": "sent alerts",
                "ordering": ("-since",),
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["recovered_at"], name="delayq_alert_recovered")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("kind", "subject"),
                        name="delayq_alert_once",
                        condition=models.Q(recovered_at__isnull=True),
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="schedule",
            name="expected_within",
            field=models.DurationField(blank=True, null=True, verbose_name="expected to succeed within"),
        ),
        migrations.AddIndex(  # of no row yet: it takes as long as a look at the table
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("expected_within__isnull", False)), fields=["id"], name="delayq_schedule_expected"
            ),
        ),
        migrations.AddField(
            model_name="schedule",
            name="ping_url",
            field=models.CharField(
                blank=True, db_default="", default="", max_length=500, verbose_name="address to ping"
            ),
        ),
    ]
