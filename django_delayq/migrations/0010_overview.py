from django.db import migrations, models


class Migration(migrations.Migration):
    """A model without a table, for its place in the admin."""

    dependencies = [("django_delayq", "0009_bulkaction")]

    operations = [
        migrations.CreateModel(
            name="Overview",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))
            ],
            options={
                "verbose_name": "at a glance",
                "verbose_name_plural": "at a glance",
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": (),
            },
        ),
    ]
