"""Names of tasks that have changed: what finds the task by its former name, who renames it, and who is told."""

import io
from importlib import import_module

import pytest
from django.core import checks
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.test.utils import CaptureQueriesContext

from django_delayq import actions, ledger, sync
from django_delayq.calls import registry
from django_delayq.calls.compat import TaskResultDoesNotExist, TaskResultStatus, task, task_backends
from django_delayq.exceptions import UnknownTask
from django_delayq.models import Control, Run, Schedule
from django_delayq.monitoring import database_side
from django_delayq.sources import declared
from tests.app import tasks
from tests.integration.admin_pages import LIST, change_url, errors, fields, make
from tests.integration.mirroring import mirrored
from tests.integration.probing import ask, text, well
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["well"]

NEW = "tests.app.tasks.add"


@task
def former(a: int, b: int = 1) -> int:
    """Stand in no module of tasks, and be called by nobody."""
    raise AssertionError("A path that is no registered task was executed.")


OLD = former.module_path


@pytest.fixture
def alias(settings):
    """Say what the task is called now; or what is given."""

    def say(aliases=None):
        settings.DELAYQ = {**settings.DELAYQ, "TASK_ALIASES": {OLD: NEW} if aliases is None else aliases}

    say()
    return say


@pytest.fixture(autouse=True)
def no_calls():
    tasks.CALLS.clear()


def test_a_schedule_runs_by_its_former_name_and_without_the_alias_waits(alias, broker):
    row = make("s", task=OLD, args=[1])
    make_due(broker, row)
    alias({})
    run_burst()
    assert (tasks.CALLS, Run.objects.filter(status="succeeded").count()) == ([], 0)
    alias()
    broker.purge()
    sync.sweep_fully(broker)
    make_due(broker, row)
    run_burst()
    assert tasks.CALLS == [(1, 1)]
    assert list(Run.objects.values_list("task", "status")) == [(OLD, "succeeded")]


def test_a_job_that_waits_runs_by_its_former_name(alias, broker):
    result = former.enqueue(1, b=2)
    run_burst()
    result.refresh()
    assert (tasks.CALLS, result.status, result.return_value) == ([(1, 2)], TaskResultStatus.SUCCESSFUL, 3)
    assert task_backends["default"].get_result(result.id).task.module_path == NEW
    alias({})
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_an_alias_opens_nothing_that_is_no_registered_task(alias):
    alias({"shop.run": "os.system", "shop.two": "shop.one", "shop.one": NEW, NEW: "tests.app.tasks.fail"})
    for path in ("shop.run", "shop.two", "os.system"):
        with pytest.raises(UnknownTask):
            registry.get_task(path)
        assert registry.resolve_path(path) == path
    assert registry.get_task("shop.one") is tasks.add
    assert registry.get_task(NEW) is tasks.add, "no alias takes the place of a task"


def test_a_pause_of_either_name_holds_back_both(alias, broker):
    first, second = make("old", task=OLD, args=[1]), make("new", task=NEW, args=[2])
    make_due(broker, first), make_due(broker, second)
    actions.pause(task=OLD)
    assert set(ledger.read_held_back().tasks) == {NEW}
    for row in Control.objects.all():
        assert row.is_about("default", OLD) and row.is_about("default", NEW)
        assert not row.is_about("default", "tests.app.tasks.fail")


def test_a_declaration_without_a_key_follows_its_task(alias, code, broker):
    code.says("periodic('0 9 * * *', args=[1])(add)")
    declared.sync()
    Schedule._base_manager.update(task=OLD, name=OLD, declared_key=OLD)
    before = Schedule.objects.get().pk
    assert declared.sync(dry_run=True).changed == 1
    report = declared.sync()
    assert report.problems == []
    row = Schedule.objects.get()
    assert (row.pk, row.task, row.name, row.enabled) == (before, NEW, NEW, True)
    assert (row.declared_key, row.declaration_gone_at) == (NEW, None)
    assert mirrored(broker, row)
    assert declared.sync().changed == 0


def test_a_declaration_that_has_kept_the_former_path_as_its_key_stays_apart(alias, code):
    code.says(f"periodic('0 9 * * *', args=[1], key='{OLD}', name='a')(add)")
    declared.sync()
    code.adds("periodic('0 8 * * *', args=[2])(add)")
    assert declared.sync().changed == 1
    assert set(Schedule.objects.values_list("declared_key", flat=True)) == {OLD, NEW}
    assert Schedule.objects.filter(enabled=True).count() == 2


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ({OLD: "tests.app.tasks.gone"}, ["'tests.app.tasks.gone', which is not a @task"]),
        ({OLD: "os.system"}, ["which is not a @task"]),
        ({"a.one": "a.two", "a.two": NEW}, ["'a.one' leads to 'a.two', which is an alias too"]),
        ({"a.one": "a.two", "a.two": "a.one"}, ["'a.one' leads to", "'a.two' leads to"]),
        ({"a.one": "a.one"}, ["'a.one' leads to 'a.one', which is an alias too"]),
        ({"tests.app.tasks.noop": NEW}, ["'tests.app.tasks.noop' is itself a task"]),
    ],
)
def test_the_check_refuses_what_leads_nowhere(alias, aliases, words):
    assert not [each for each in checks.run_checks(tags=["delayq"]) if each.id == "delayq.E005"], "a good one"
    alias(aliases)
    (message,) = [each for each in checks.run_checks(tags=["delayq"]) if each.id == "delayq.E005"]
    assert all(word in message.msg for word in words), message.msg
    assert message.hint and message.level == checks.ERROR


def test_a_data_migration_renames_it_and_workers_follow(alias, broker):
    row = make("s", task=OLD, args=[1])
    make_due(broker, row)
    apps = MigrationLoader(connection).project_state(("django_delayq", "0001_initial")).apps
    apps.get_model("django_delayq", "Schedule").objects.filter(task=OLD).update(task=NEW)
    alias({})
    run_burst()
    assert tasks.CALLS == [(1, 1)]


def lose(*names, task="shop.tasks.gone", **values):
    for name in names:
        make(name, **values)
    Schedule._base_manager.filter(name__in=names).update(task=task)


def test_schedules_of_unknown_tasks_are_a_problem_with_their_names_and_the_list_tells_of_them(boss, well, alias):
    make("fine"), make("by its former name", task=OLD, args=[1])
    assert ask()[1]["unknown_tasks"] == {"count": 0, "names": []}
    lose("a", "b")
    lose("c", task="shop.tasks.other")
    lose("off", enabled=False, task="shop.tasks.paused")
    code, found = ask()
    (problem,) = found["problems"]
    assert (code, problem["code"]) == (1, "unknown_tasks")
    assert problem["message"].startswith("3 schedules use a task that no installed app has, and do not run")
    assert "TASK_ALIASES" in problem["message"]
    assert found["unknown_tasks"]["count"] == 3
    names = found["unknown_tasks"]["names"]
    assert [name.split(" ")[1] for name in names] == ["(shop.tasks.gone)", "(shop.tasks.other)"]
    assert "unknown_tasks: 3 schedules" in text()
    page = boss.get(LIST).content.decode()
    assert "3 schedules use a task that no installed app has, and do not run" in page and "a (shop.tasks.gone)" in page
    alias({})
    assert ask()[1]["unknown_tasks"]["count"] == 4


def test_more_than_it_looks_at_is_said(well, monkeypatch):
    for name in ("database_side", "problems"):
        monkeypatch.setattr(import_module(f"django_delayq.monitoring.{name}"), "MOST_UNKNOWN", 2)
    lose("a", "b", "c")
    found = ask()[1]
    assert found["problems"][0]["message"].startswith("2+ schedules")
    assert found["unknown_tasks"]["count"] == 3


def test_looking_for_them_reads_only_rows_of_unknown_tasks():
    lose("a")
    with CaptureQueriesContext(connection) as asked:
        assert database_side.count_unknown(database_side.read_used()["task"]) == database_side.Named(
            1, ("a (shop.tasks.gone)",)
        )
    assert len(asked) == 2
    if connection.vendor == "sqlite":  # PostgreSQL reads a table of one row as it is
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN QUERY PLAN " + asked[1]["sql"])
            assert "USING INDEX delayq_schedule_task " in str(cursor.fetchall())


def test_the_admin_marks_a_former_name_and_its_form_keeps_it_or_takes_the_present_one(boss, alias, broker):
    row = make("s", task=OLD, args=[1])
    listed = boss.get(LIST).content.decode()
    assert f"The task is now called {NEW}, according to" in listed and "task missing: does not run" not in listed
    page = boss.get(change_url(row)).content.decode()
    assert f"This is a former name of {NEW}" in page
    assert f'<option value="{OLD}">alias of {NEW}</option>' in page
    for path in (OLD, NEW):
        response = boss.post(change_url(row), fields(task=path, args="[7]", description=path))
        assert response.status_code == 302, errors(response)
        row.refresh_from_db()
        assert (row.task, row.args, row.description) == (path, [7], path)
    assert "a former name" not in boss.get(change_url(row)).content.decode()


def test_an_explanation_knows_it_too(alias):
    row = make("s", task=OLD, args=[1])
    for aliases, told in ((None, False), ({}, True)):
        alias(aliases)
        out = io.StringIO()
        call_command("delayq_status", row.name, stdout=out)
        assert (f"No installed app has the @task function {OLD}" in out.getvalue()) is told
