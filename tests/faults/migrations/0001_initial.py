from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("django_delayq", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="OwnedSchedule",
            fields=[
                (
                    "schedule_ptr",
                    models.OneToOneField(
                        auto_created=True,
                        on_delete=models.CASCADE,
                        parent_link=True,
                        primary_key=True,
                        serialize=False,
                        to="django_delayq.schedule",
                    ),
                ),
                ("owner", models.ForeignKey(on_delete=models.CASCADE, to=settings.AUTH_USER_MODEL)),
            ],
            bases=("django_delayq.schedule",),
        ),
        migrations.CreateModel(
            name="NamedSchedule",
            fields=[],
            options={"proxy": True, "indexes": [], "constraints": []},
            bases=("django_delayq.schedule",),
        ),
    ]
