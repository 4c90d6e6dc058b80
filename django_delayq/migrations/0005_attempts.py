from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField


class Migration(migrations.Migration):
    """Earlier attempts of a run; whether an edit was followed by another one while a point was held.

    Older versions leave both alone.
    """

    dependencies = [("django_delayq", "0004_job_dead")]

    operations = [
        migrations.AddField("run", "attempts", models.JSONField(editable=False, null=True)),
        migrations.AddField("schedule", "replaced_from", UTCDateTimeField(editable=False, null=True)),
    ]
