from django.db import migrations, models


class Migration(migrations.Migration):
    """A model without a table, for its permissions."""

    dependencies = [("django_delayq", "0002_job")]

    operations = [
        migrations.CreateModel(
            name="RedisJob",
            fields=[("id", models.CharField(max_length=63, primary_key=True, serialize=False))],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view", "change", "delete"),
            },
        ),
    ]
