import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """What schedules are sorted by. Older versions leave it alone."""

    dependencies = [("django_delayq", "0014_permissions")]

    operations = [
        migrations.CreateModel(
            name="Tag",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=50, verbose_name="tag")),
                (
                    "schedule",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="tags",
                        to="django_delayq.schedule",
                    ),
                ),
            ],
            options={
                "verbose_name": "tag",
                "verbose_name_plural": "tags",
                "ordering": ("name",),
                "base_manager_name": "objects",
                "default_permissions": (),
                "indexes": [models.Index(fields=["name", "schedule"], name="delayq_tag_name")],
                "constraints": [models.UniqueConstraint(fields=("schedule", "name"), name="delayq_tag_unique")],
            },
        ),
    ]
