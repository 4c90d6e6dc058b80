from django.db import migrations

import django_delayq.fields


class Migration(migrations.Migration):
    """Whether an edit was followed by another one while a point was held. Older versions leave it as it is."""

    dependencies = [("django_delayq", "0005_attempts")]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="replaced_from",
            field=django_delayq.fields.UTCDateTimeField(editable=False, null=True),
        ),
    ]
