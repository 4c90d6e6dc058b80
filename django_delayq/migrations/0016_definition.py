import django.db.models.deletion
from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField, utcnow


class Migration(migrations.Migration):
    """What schedules were before they were edited. Older versions keep nothing there, and delete nothing."""

    dependencies = [("django_delayq", "0015_tags")]

    operations = [
        migrations.CreateModel(
            name="Definition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("since", models.BigIntegerField()),
                ("generation", models.BigIntegerField()),
                ("followed_by", models.BigIntegerField()),
                ("replaced_at", UTCDateTimeField(default=utcnow)),
                ("by", models.CharField(blank=True, max_length=200)),
                ("values", models.JSONField(default=dict)),
                (
                    "schedule",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="definitions",
                        to="django_delayq.schedule",
                    ),
                ),
            ],
            options={
                "verbose_name": "former definition",
                "verbose_name_plural": "former definitions",
                "base_manager_name": "objects",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["schedule", "generation"], name="delayq_definition_of"),
                    models.Index(fields=["by", "id"], name="delayq_definition_by"),
                ],
            },
        ),
    ]
