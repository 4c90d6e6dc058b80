"""Projects with the backport of Django's tasks beside Django 6, as Wagtail brings it. In processes of their own."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("django_tasks")

TASKS = """
    from datetime import timedelta
    from {framework} import task
    from django_delayq import periodic

    @periodic(every=timedelta(minutes=5))
    @task(takes_context=True)
    def count(context, name: str = "stock") -> str:
        if name == "none":
            raise ValueError("no such stock")
        return f"{{name}} {{context.attempt}}"
"""
PROJECT = """
    import django
    from django.conf import settings

    settings.configure(
        SECRET_KEY="x" * 50, USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DELAYQ={"MIRROR": False, "COMMANDS": ["check"]},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_delayq", "shop"],
        TASKS={
            "default": {"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"},
            "jobs": {"BACKEND": "django_delayq.backend.DelayQBackend"},
        },
    )
    django.setup()
    from datetime import timedelta
    from django.core.management import call_command
    from django_delayq.models import Schedule
    from django_delayq.calls.registry import get_tasks
    from django_delayq.testing import Runner
    from shop.tasks import count

    call_command("migrate", verbosity=0)
    call_command("check", fail_level="WARNING")
    print(*get_tasks())
    row = {"task": "shop.tasks.count", "kind": "cron", "cron": "* * * * *", "max_runs": 1}
    with Runner() as delayq:
        Schedule.objects.create(name="here", **row)
        Schedule.objects.create(name="there", backend="default", **row)
        Schedule.objects.create(name="wrong", backend="default", kwargs={"name": "none"}, **row)
        result = count.using(backend="jobs", run_after=delayq.now).enqueue(name="job")
        runs = delayq.run_due(delayq.now + timedelta(minutes=2))
        print(*sorted((run.schedule_name, str(run.status)) for run in runs))
        print([run.result for run in runs if run.schedule_name == "here"])
        result.refresh()
        print(result.return_value)
"""


@pytest.mark.parametrize("framework", ["django_tasks", "django_delayq.calls.compat"])
def test_its_tasks_are_scheduled_and_enqueued_where_the_default_backend_is_one_of_the_backport(tmp_path, framework):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(textwrap.dedent(TASKS.format(framework=framework)))
    (tmp_path / "project.py").write_text(textwrap.dedent(PROJECT))
    done = subprocess.run([sys.executable, "project.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "System check identified no issues (0 silenced).",
        "django_delayq.tasks.management_command shop.tasks.count",
        "('here', 'succeeded') ('there', 'succeeded') ('wrong', 'failed')",
        "['stock 1']",
        "job 1",
    ], done.stderr
