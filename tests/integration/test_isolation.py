"""Tasks that ask for a process of their own: how they say so, what is refused, and where nothing comes of it.

What such a process does: tests/faults/test_f44_isolated.py.
"""

import json
import os
import pickle
import traceback
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest
from django.core import checks
from django.core.exceptions import ValidationError

from django_delayq import isolated, ledger
from django_delayq.calls.commands.child import ProcessDied
from django_delayq.calls.compat import InvalidTask, task
from django_delayq.calls.isolation import MARK, Isolation
from django_delayq.exceptions import InvalidArguments, TaskTimeout
from django_delayq.ledger.rows import RunRow
from django_delayq.models import Schedule
from django_delayq.testing import Runner
from django_delayq.worker.isolated import pack_error, pack_row, unpack_error, unpack_outcome

pytestmark = pytest.mark.django_db(transaction=True)
MODULE = "tests.faults.isolated_tasks"


@pytest.fixture
def offered(settings):
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": ["tasks", "isolated_tasks"]}


def work():
    pass


def above():
    pass


def below():
    pass


def found(number):
    return [each for each in checks.run_checks(tags=["delayq"]) if each.id == number]


# -- how it is said


def test_a_task_says_it_by_a_decorator_above_or_below():
    assert not hasattr(task(work).func, MARK)
    assert getattr(isolated(task(above)).func, MARK) == Isolation(None)
    assert getattr(task(isolated(memory_mb=512)(below)).func, MARK) == Isolation(512)


def test_a_limit_that_is_none_is_refused():
    with pytest.raises(InvalidTask, match="from 64"):
        isolated(memory_mb="1G")


def test_commands_that_no_app_has_are_told_at_the_check(settings):
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": ["clearsesions", "flush"]}
    (message,) = found("delayq.W004")
    assert message.msg.endswith("that no installed app has: 'clearsesions'. Did you mean 'clearsessions'?")
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": ["clearsessions"]}
    assert not found("delayq.W004")


# -- where it makes no difference


def test_in_a_test_it_runs_in_the_test_s_own_process(offered, settings):
    Schedule.objects.create(name="s", task=f"{MODULE}.leak", kind="every", every=timedelta(minutes=1))
    with Runner() as delayq:
        (run,) = delayq.run_due(timedelta(minutes=1))
    assert run.result[1] == os.getpid()
    os.environ.pop("LEAKED")


# -- rows that cross


def test_rows_are_the_same_on_the_other_side(offered):
    """To the microsecond, whatever the names in the arguments."""
    moment = datetime(2026, 7, 1, 8, 30, 0, 123457, tzinfo=UTC)
    row = Schedule.objects.create(
        name="s", task=f"{MODULE}.leak", kind="every", every=timedelta(days=4000, microseconds=1), start_at=moment,
        args=[{"instants": {"é": "x"}}], timeout=timedelta(seconds=0.3),
    )  # fmt: skip
    (schedule,) = ledger.load_schedules([row.pk]).values()
    run = RunRow.build_for(schedule, moment, status="running", attempt=2, claimed_at=moment, worker="w")
    packed = json.loads(json.dumps([pack_row(run), pack_row(schedule)]))
    other = unpack_outcome(*packed)
    assert asdict(other.run) == asdict(run)
    assert {**asdict(other.schedule), "state": None} == {**asdict(schedule), "state": None}
    assert other.schedule.state.schedule_id == row.pk and not other.schedule.state.stored


# -- exceptions that cross


class Awkward(Exception):
    """Can only be made with a keyword, and its text needs it."""

    def __init__(self, *, item):
        super().__init__(item)
        self.item = item

    def __str__(self):
        return f"no {self.item}"


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("not even that")


class Strict(Exception):
    def __init_subclass__(cls, **kwargs):
        raise TypeError("no kinds of it")


class Picky(Exception):
    def __new__(cls, a, b):
        return super().__new__(cls, a, b)


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def crossed(error):
    return unpack_error(json.loads(json.dumps(pack_error(raised(error)))))


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (ValueError("a", 1), ValueError),
        (KeyError("k"), KeyError),
        (OSError(2, "gone", "f"), OSError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), UnicodeDecodeError),
        (Awkward(item="tea"), Awkward),
        (Unspeakable("x"), Unspeakable),
        (Strict("x"), Exception),
        (Picky("x", "y"), Exception),
        (ExceptionGroup("g", [ValueError("x")]), Exception),
        (InvalidArguments("x"), InvalidArguments),
        (ValidationError("x"), ValidationError),
        (ProcessDied(3), ProcessDied),
        (TaskTimeout(), TaskTimeout),
        (SystemExit(3), SystemExit),
        (StopIteration(3), StopIteration),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_an_exception_has_its_type_text_and_traceback_on_the_other_side(error, base):
    other = crossed(error)
    assert isinstance(other, base)
    assert (type(other).__module__, type(other).__qualname__) == (type(error).__module__, type(error).__qualname__)
    if not isinstance(error, Unspeakable):
        assert str(other) == str(error)
    assert bool(other.args) == bool(error.args)
    assert "in raised" in other.delayq_traceback
    "".join(traceback.format_exception(raised(other)))


def test_a_class_that_is_not_imported_here_is_not_imported_for_it():
    told = pack_error(raised(ValueError("x")))
    told["classes"].insert(0, ("nowhere.errors", "Strange"))
    other = unpack_error(told)
    assert (type(other).__module__, type(other).__qualname__) == ("nowhere.errors", "Strange")
    assert isinstance(other, ValueError)
    assert isinstance(unpack_error({**told, "classes": [("os", "path.join"), ("builtins", "OSError")]}), OSError)


def test_nothing_of_it_is_unpickled():
    class Evil(Exception):
        def __reduce__(self):
            return os.abort, ()

    assert pickle.dumps and str(crossed(Evil("x"))) == "x"
