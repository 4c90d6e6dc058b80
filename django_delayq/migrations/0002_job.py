from django.db import migrations, models

import django_delayq.fields


class Migration(migrations.Migration):
    dependencies = [
        ("django_delayq", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("member", models.CharField(max_length=23)),
                ("queue", models.CharField(max_length=64, verbose_name="queue")),
                ("backend", models.CharField(max_length=255, verbose_name="backend")),
                ("task", models.CharField(max_length=255, verbose_name="task")),
                ("priority", models.SmallIntegerField(default=0, verbose_name="priority")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("READY", "waiting"),
                            ("RUNNING", "running"),
                            ("SUCCESSFUL", "successful"),
                            ("FAILED", "failed"),
                        ],
                        default="READY",
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                ("attempt", models.PositiveIntegerField(default=0, verbose_name="attempt")),
                ("reclaims", models.PositiveIntegerField(default=0, verbose_name="reclaims")),
                ("fence", models.CharField(blank=True, default="", max_length=255, verbose_name="fence")),
                ("unique", models.CharField(blank=True, default="", max_length=22)),
                ("mirrored", models.BooleanField(default=False)),
                (
                    "wakes_at",
                    django_delayq.fields.UTCDateTimeField(
                        default=django_delayq.fields.utcnow, verbose_name="not before"
                    ),
                ),
                (
                    "enqueued_at",
                    django_delayq.fields.UTCDateTimeField(default=django_delayq.fields.utcnow, verbose_name="enqueued"),
                ),
                ("finished_at", django_delayq.fields.UTCDateTimeField(null=True, verbose_name="finished")),
                ("expires_at", django_delayq.fields.UTCDateTimeField(null=True)),
                ("call", models.TextField()),
                ("state", models.TextField(blank=True, default="")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "ordering": ("-pk",),
                "indexes": [
                    models.Index(condition=models.Q(("mirrored", False)), fields=["id"], name="delayq_job_unmirrored"),
                    models.Index(
                        condition=models.Q(("status__in", ("READY", "RUNNING"))), fields=["id"], name="delayq_job_open"
                    ),
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False)),
                        fields=["expires_at"],
                        name="delayq_job_expires",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("member",), name="delayq_job_member"),
                    models.UniqueConstraint(
                        condition=models.Q(("unique", ""), _negated=True),
                        fields=("queue", "unique"),
                        name="delayq_job_unique_key",
                    ),
                ],
            },
        ),
    ]
