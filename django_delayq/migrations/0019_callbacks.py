from django.db import migrations, models


def _path(verbose_name: str) -> "models.CharField[str, str]":
    return models.CharField(blank=True, db_default="", default="", max_length=255, verbose_name=verbose_name)


class Migration(migrations.Migration):
    """What is enqueued after the outcomes of a schedule. Older versions insert rows without it, and call nothing."""

    dependencies = [("django_delayq", "0018_alert")]

    operations = [
        migrations.AddField("schedule", "on_success", _path("task after a success")),
        migrations.AddField("schedule", "on_failure", _path("task after a failure")),
    ]
