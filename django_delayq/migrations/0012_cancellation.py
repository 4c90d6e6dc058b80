from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField, utcnow


class Migration(migrations.Migration):
    """What people have asked to be stopped while it runs. Older versions leave it alone, and do not follow it."""

    dependencies = [("django_delayq", "0011_control")]

    operations = [
        migrations.CreateModel(
            name="Cancellation",
            fields=[
                ("key", models.CharField(max_length=300, primary_key=True, serialize=False)),
                ("asked_at", UTCDateTimeField(default=utcnow)),
                ("asked_by", models.CharField(blank=True, max_length=200)),
            ],
            options={
                "verbose_name": "stop of what runs",
                "verbose_name_plural": "stops of what runs",
                "default_permissions": ("add",),
                "base_manager_name": "objects",
            },
        ),
    ]
