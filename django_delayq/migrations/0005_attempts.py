from django.db import migrations, models

import django_delayq.fields


class Migration(migrations.Migration):
    """Earlier attempts of a run; who executes a durable job, and since when. Older versions leave these alone."""

    dependencies = [("django_delayq", "0004_job_dead")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="attempts",
            field=models.JSONField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="started_at",
            field=django_delayq.fields.UTCDateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="worker",
            field=models.CharField(blank=True, db_default="", default="", max_length=128),
        ),
    ]
