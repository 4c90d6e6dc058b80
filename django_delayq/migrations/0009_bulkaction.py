from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField, utcnow


class Migration(migrations.Migration):
    """What people have ordered for many schedules at once. Older versions leave it alone."""

    dependencies = [("django_delayq", "0008_long_lists")]

    operations = [
        migrations.CreateModel(
            name="BulkAction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        choices=[
                            ("run_now", "Run now"),
                            ("pause", "Pause"),
                            ("resume", "Resume"),
                            ("delete", "Delete"),
                        ],
                        max_length=16,
                    ),
                ),
                ("reason", models.CharField(blank=True, max_length=200)),
                ("logged", models.CharField(max_length=300)),
                ("user_key", models.CharField(blank=True, max_length=64)),
                ("user_name", models.CharField(blank=True, max_length=200)),
                ("chosen", models.BinaryField()),
                ("total", models.PositiveIntegerField()),
                ("done", models.PositiveIntegerField(default=0)),
                ("changed", models.PositiveIntegerField(default=0)),
                ("created_at", UTCDateTimeField(default=utcnow)),
                ("started_at", UTCDateTimeField(null=True)),
                ("finished_at", UTCDateTimeField(null=True)),
                ("cancelled", models.BooleanField(default=False)),
                ("error", models.TextField(blank=True)),
            ],
            options={
                "verbose_name": "bulk action",
                "verbose_name_plural": "bulk actions",
                "default_permissions": (),
            },
        ),
    ]
