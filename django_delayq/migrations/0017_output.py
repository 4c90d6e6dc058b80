from django.db import migrations, models


def _parent(model: str) -> "models.ForeignKey[object, object]":
    return models.ForeignKey(
        db_constraint=False,
        db_index=False,
        null=True,
        on_delete=models.CASCADE,
        related_name="outputs",
        to=f"django_delayq.{model}",
    )


class Migration(migrations.Migration):
    """What executions have said, in a table of its own; an index for jobs that succeeded; who may see arguments.

    Older versions leave the table alone.
    """

    dependencies = [("django_delayq", "0016_definition")]

    operations = [
        migrations.CreateModel(
            name="Output",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("text", models.TextField(verbose_name="output")),
                ("job", _parent("job")),
                ("run", _parent("run")),
            ],
            options={
                "verbose_name": "output",
                "verbose_name_plural": "outputs",
                "base_manager_name": "objects",
                "default_permissions": (),
                "constraints": (
                    models.UniqueConstraint(
                        fields=("run", "attempt"), name="delayq_output_of_run", condition=models.Q(run__isnull=False)
                    ),
                    models.UniqueConstraint(
                        fields=("job", "attempt"), name="delayq_output_of_job", condition=models.Q(job__isnull=False)
                    ),
                ),
            },
        ),
        migrations.AlterModelOptions(
            name="redisjob",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view", "change", "delete"),
                "managed": False,
                "permissions": (("view_job_arguments", "Can see the arguments of jobs"),),
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                fields=("queue", "finished_at", "id"),
                name="delayq_job_succeeded",
                condition=models.Q(status="SUCCESSFUL"),
            ),
        ),
    ]
