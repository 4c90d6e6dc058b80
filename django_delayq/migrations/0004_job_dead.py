from django.db import migrations, models

import django_delayq.fields


class Migration(migrations.Migration):
    """When a durable job died, and an index to list such jobs by, what died last first."""

    dependencies = [("django_delayq", "0003_redisjob")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="died_at",
            field=django_delayq.fields.UTCDateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("died_at__isnull", False)),
                fields=["queue", "died_at", "id"],
                name="delayq_job_dead",
            ),
        ),
    ]
