"""django-tasks-scheduler's table of tasks; points as it computes them."""

from datetime import UTC, datetime, timedelta

import pytest
from croniter import croniter
from django.utils import timezone
from scheduler.models import Task, TaskArg, TaskKwarg
from scheduler.models.task import get_next_cron_time

from django_delayq.models import Schedule
from tests.importing.conftest import START, imported, our_points

ADD = "tests.importing.callables.add"
MAPS = ["--map=tests.importing.callables.*=tests.app.tasks.gather"]


def row(name, **values):
    """Make a row as its admin does, without sending anything to Redis."""
    made = Task(name=name, **{"callable": ADD, "queue": "default", **values})
    made.clean()
    made.save(schedule_job=False, clean=False)
    made.callable_args.add(TaskArg(arg_type="int", val="2"), bulk=False)
    return made


@pytest.mark.parametrize("cron", ["0 0 * * *", "*/15 * * * *", "0 22 1 * 1", "0 0 */2 * 1", "30 8 * * mon-fri"])
def test_the_points_of_a_cron_expression_are_its_own(cron):
    row("s", task_type="CronTaskType", cron_string=cron)
    assert imported("django-tasks-scheduler", *MAPS, write=True)[""]
    own = croniter(cron, START)
    assert our_points("s") == [own.get_next(datetime) for _ in range(10)]
    assert our_points("s", timezone.now(), 1) == [get_next_cron_time(cron)]


@pytest.mark.parametrize("unit", ["seconds", "minutes", "hours", "days", "weeks"])
def test_the_points_of_an_interval_are_its_own(unit):
    begun = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=30)
    made = row("s", task_type="RepeatableTaskType", interval=20, interval_unit=unit, scheduled_time=begun, repeat=400)
    assert imported("django-tasks-scheduler", *MAPS, write=True)[""]
    assert our_points("s", timezone.now(), 1) == [made._next_schedule()[0]]
    assert Schedule.objects.get().max_runs == 401


def test_a_time_and_arguments_come_over_or_are_refused():
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    made = row("once", task_type="OnceTaskType", scheduled_time=soon, timeout=20, at_front=True, enabled=False)
    made.callable_kwargs.add(TaskKwarg(key="b", arg_type="json", val="[1]"), bulk=False)
    row("dated", task_type="OnceTaskType", scheduled_time=soon).callable_kwargs.add(
        TaskKwarg(key="b", arg_type="datetime", val="2027-01-01T00:00:00"), bulk=False
    )
    row("called", task_type="CronTaskType", cron_string="@daily").callable_args.add(
        TaskArg(arg_type="callable", val="tests.importing.callables.add"), bulk=False
    )
    found = imported("django-tasks-scheduler", *MAPS, write=True)
    assert [found[name]["action"] for name in ("once", "dated", "called")] == ["create", "refuse", "refuse"]
    once = Schedule.objects.get()
    assert (once.at, once.args, once.kwargs, once.enabled) == (soon, [2], {"b": [1]}, False)
    assert once.timeout == timedelta(seconds=20)
    assert "JSON" in found["dated"]["reason"] and "returns at each run" in found["called"]["reason"]
