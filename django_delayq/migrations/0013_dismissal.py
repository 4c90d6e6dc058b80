from django.db import migrations, models

from django_delayq.fields import UTCDateTimeField


class Migration(migrations.Migration):
    """Which failures somebody has dismissed. Older versions leave it alone."""

    dependencies = [("django_delayq", "0012_cancellation")]

    operations = [
        migrations.CreateModel(
            name="Dismissal",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=32)),
                ("until", UTCDateTimeField()),
                ("by", models.CharField(blank=True, max_length=200)),
            ],
            options={
                "verbose_name": "dismissed failure",
                "verbose_name_plural": "dismissed failures",
                "base_manager_name": "objects",
                "default_permissions": (),
                "constraints": (models.UniqueConstraint(fields=("digest",), name="delayq_dismissal_unique"),),
            },
        ),
    ]
