"""`@periodic`: what it takes, what it refuses while the module is being imported, and that it needs no models."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from django_delayq import periodic
from django_delayq.calls import decorators
from django_delayq.calls.compat import task
from django_delayq.calls.decorators import Declared, ScheduleFields, list_declared
from django_delayq.exceptions import InvalidArguments, InvalidRecurrence
from django_delayq.models import Schedule
from tests.app.tasks import add, flaky, noop
from tests.declaring import TASKS, Code, declaring


@pytest.fixture
def code() -> Iterator[Code]:
    with declaring() as one:
        yield one


def the_one(code: Code) -> Declared:
    (found,) = [each for each in list_declared() if each not in code.before]
    return found


def test_the_task_is_returned_as_it_is_so_that_several_may_stand_above_each_other(code: Code) -> None:
    assert periodic("* * * * *", name="b")(periodic("0 * * * *", name="a")(noop)) is noop
    assert sorted(each.key for each in list_declared() if each not in code.before) == ["a", "b"]


def test_key_and_name_are_the_tasks_path_unless_told(code: Code) -> None:
    path = "tests.app.tasks.noop"
    for given, key, name in (
        ("", path, path),
        (", name='n'", "n", "n"),
        (", key='k'", "k", "k"),
        (", key='k', name='n'", "k", "n"),
    ):
        code.says(f"periodic('* * * * *'{given})(noop)")
        found = the_one(code)
        assert (found.key, found.values["name"], found.task, found.module) == (key, name, path, TASKS)


def test_the_module_is_the_one_that_is_imported_also_through_a_function_of_another(code: Code) -> None:
    code.says("from tests.unit.test_periodic import nightly\nnightly(noop)")
    assert the_one(code).module == TASKS


def nightly(a_task: object) -> object:
    return periodic("0 3 * * *", name="nightly")(a_task)  # type: ignore[type-var]


def test_the_interval_may_be_typed_as_cron(code: Code) -> None:
    code.says("periodic('@every 1h30m')(noop)")
    values = the_one(code).values
    assert (values["kind"], values["cron"], values["every"]) == ("every", "", timedelta(minutes=90))


def test_arguments_are_kept_as_json_gives_them_back_and_not_shared(code: Code) -> None:
    code.says("given = [1, 2]\nperiodic('* * * * *', args=('x', given))(note)\ngiven.append(3)", TASKS)
    assert the_one(code).values["args"] == ["x", [1, 2]]


def test_instants_without_a_zone_are_read_in_that_of_the_schedule_and_others_keep_their_meaning(code: Code) -> None:
    code.says(
        "periodic(at=datetime(2040, 1, 1, 10), start_at=datetime(2039, 7, 1, 10), "
        "end_at=datetime(2041, 1, 1, 10, tzinfo=UTC), timezone='Europe/Berlin')(noop)"
    )
    values = the_one(code).values
    assert values["at"] == datetime(2040, 1, 1, 9, tzinfo=UTC)
    assert values["start_at"] == datetime(2039, 7, 1, 8, tzinfo=UTC)
    assert values["end_at"] == datetime(2041, 1, 1, 10, tzinfo=UTC)


def test_every_field_that_a_person_can_edit_can_be_declared() -> None:
    editable = {field.name for field in Schedule._meta.concrete_fields if field.editable and not field.primary_key}
    assert ScheduleFields.__annotations__.keys() - {"key"} == editable - {"kind", "cron", "task"}


WRONG = [
    ("61 * * * *", {}, InvalidRecurrence, "minute"),
    ("", {}, InvalidRecurrence, "exactly one of cron, every and at"),
    ("* * * * *", {"every": timedelta(hours=1)}, InvalidRecurrence, "exactly one"),
    ("", {"every": 5}, InvalidRecurrence, "every must be a timedelta"),
    ("", {"at": datetime(2030, 1, 1)}, InvalidRecurrence, "aware"),  # noqa: DTZ001 - naive is the point
    ("* * * * *", {"start_at": datetime(2030, 1, 1)}, InvalidRecurrence, "aware"),  # noqa: DTZ001
    ("", {"at": datetime(2040, 3, 25, 2, 30), "timezone": "Europe/Berlin"}, InvalidRecurrence, "does not exist"),  # noqa: DTZ001
    ("", {"at": datetime(2040, 3, 25), "timezone": "Berlin"}, InvalidRecurrence, "Europe/Berlin"),  # noqa: DTZ001
    (
        "* * * * *",
        {"start_at": datetime(2030, 1, 2, tzinfo=UTC), "end_at": datetime(2030, 1, 1, tzinfo=UTC)},
        InvalidRecurrence,
        "before the start",
    ),
    ("0 9 * * *", {"timezone": "Europe/Rige"}, InvalidRecurrence, "Europe/Rige"),
    ("0 9 * * *", {"dst_gap": "jump"}, InvalidRecurrence, "dst_gap"),
    ("* * * * *", {"overlap": "never"}, InvalidRecurrence, "overlap is one of"),
    ("* * * * *", {"missed": "some"}, InvalidRecurrence, "missed is one of"),
    ("* * * * *", {"mised": "all"}, TypeError, "Did you mean 'missed'?"),
    ("* * * * *", {"args": [1]}, InvalidArguments, "noop("),
    ("* * * * *", {"kwargs": {"a": 1}}, InvalidArguments, "noop("),
    ("* * * * *", {"kwargs": {"a": object()}}, InvalidArguments, "plain JSON"),
    ("* * * * *", {"name": ""}, ValueError, "name of a schedule is a text of 1 to 200"),
    ("* * * * *", {"key": "x" * 201}, ValueError, "1 to 200"),
]


@pytest.mark.parametrize(("cron", "fields", "error", "told"), WRONG)
def test_what_is_wrong_is_refused_where_it_stands(code, cron, fields, error, told) -> None:
    with pytest.raises(error, match=None) as caught:
        periodic(cron, **fields)(noop)
    assert told in str(caught.value)
    assert list_declared() == code.before


def test_a_call_that_the_task_cannot_take_is_refused_and_one_that_it_can_is_not(code: Code) -> None:
    with pytest.raises(InvalidArguments):
        periodic("* * * * *")(add)
    periodic("* * * * *", kwargs={"a": 1})(add)
    with pytest.raises(InvalidArguments):
        periodic("* * * * *", args=["only one"])(flaky)


def test_below_task_or_without_parentheses_it_says_where_it_belongs() -> None:
    with pytest.raises(TypeError, match="above @task"):
        task(periodic("* * * * *")(nightly))  # type: ignore[type-var]
    with pytest.raises(TypeError, match="@periodic needs a time"):
        periodic(noop)  # type: ignore[arg-type]


def test_a_second_schedule_of_a_task_needs_a_name(code: Code) -> None:
    periodic("* * * * *")(noop)
    with pytest.raises(ValueError, match=r"a name of its own, name='…'"):
        periodic("0 * * * *")(noop)
    periodic("0 * * * *", name="hourly")(noop)


def test_a_module_that_is_loaded_again_replaces_its_own(code: Code) -> None:
    source = (
        "from django_delayq.calls.compat import task\n@periodic('{} * * * *')\n@task\ndef again(): ...\nimport sys\n"
    )
    for minute in (1, 2):
        code.adds(source.format(minute), "tests.app.tasks")
    assert the_one(code).values["cron"] == "2 * * * *"


def test_it_needs_neither_models_nor_apps_that_are_ready() -> None:
    source = (
        "import sys\n"
        "from django.conf import settings\n"
        "settings.configure()\n"
        "from django_delayq import periodic\n"
        "from django_delayq.calls.compat import task\n"
        "import tests.app.tasks as tasks\n"
        "periodic('*/5 * * * *')(tasks.noop)\n"
        "assert 'django_delayq.models' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_name_of_the_package_is_the_decorator_whatever_was_imported() -> None:
    import django_delayq

    assert django_delayq.periodic is decorators.periodic
