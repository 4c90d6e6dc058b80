"""Enqueuing as Django documents it: what comes back, what is refused, and when it runs."""

import pickle
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from django_delayq.backend import DelayQBackend
from django_delayq.calls import generate_tokens, parse_id
from django_delayq.calls.compat import (
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task,
    task_backends,
)
from django_delayq.exceptions import InvalidArguments, UnknownTask
from django_delayq.models import Run
from django_delayq.recurrence import from_ms
from tests.acceptance.support import ROOT, command_environment
from tests.app import tasks as app_tasks
from tests.jobs import tasks
from tests.jobs.support import BACKEND, SUCCESSFUL, Standing, row, run, run_burst, tasks_setting

pytestmark = pytest.mark.django_db(transaction=True)

ENQUEUE = pytest.mark.parametrize(
    "enqueue",
    [
        lambda made, *args, **kwargs: made.enqueue(*args, **kwargs),
        lambda made, *args, **kwargs: async_to_sync(made.aenqueue)(*args, **kwargs),
    ],
    ids=["enqueue", "aenqueue"],
)


# -- the backend


def test_the_backend_is_what_the_settings_name():
    backend = task_backends["default"]
    assert type(backend) is DelayQBackend
    assert (backend.alias, backend.queues) == ("default", {"default", "mail"})
    assert backend.supports_defer and backend.supports_async_task
    assert backend.supports_get_result and backend.supports_priority


def test_a_task_is_of_our_class_and_keeps_what_django_gives_it():
    assert isinstance(tasks.echo, Task)
    assert type(tasks.echo) is DelayQBackend.task_class
    assert (tasks.echo.name, tasks.echo.module_path) == ("echo", "tests.jobs.tasks.echo")
    assert tasks.echo.get_backend() is task_backends["default"]
    assert tasks.echo.call(1, a=2) == [[1], {"a": 2}]
    assert async_to_sync(tasks.echo.acall)(1) == [[1], {}]
    assert tasks.aecho.call(1) == [[1], {}]


# -- what comes back


@ENQUEUE
@pytest.mark.parametrize("made", [tasks.echo, tasks.aecho], ids=["def", "async def"])
def test_what_comes_back_is_a_result_still_to_come(enqueue, made, use_tz):
    before = timezone.now() - timedelta(milliseconds=1)
    result = enqueue(made, 1, two=3)
    assert result.task == made
    assert (result.status, result.is_finished) == (TaskResultStatus.READY, False)
    assert before <= result.enqueued_at <= timezone.now()
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.args, result.kwargs) == ([1], {"two": 3})
    assert (result.backend, result.errors, result.worker_ids, result.attempts) == ("default", [], [], 0)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_ids_are_unique_and_shorter_than_64_characters_and_nobody_guesses_them():
    results = tasks.echo.enqueue_many([((), {})] * 300)
    parsed = [parse_id(result.id) for result in results]
    assert [f"{pk}-{token}" for pk, token in parsed] == [result.id for result in results]
    assert len({token for _, token in parsed}) == 300
    pk, token = parsed[0]
    guessed = f"{pk}-{'A' * len(token)}", f"{pk}-{parsed[1][1]}", f"{pk}-{token[:-1]}", f"0{pk}-{token}"
    for id in guessed:
        with pytest.raises(TaskResultDoesNotExist):
            tasks.echo.get_result(id)
    assert len(f"{2**63}-{token}") < 64


def test_the_random_part_of_an_id_has_more_than_120_bits():
    tokens = generate_tokens(4096)
    assert {len(token) for token in tokens} == {22}
    for at in range(22):  # each place takes each of 64 values: 132 bits
        assert len({token[at] for token in tokens}) == 64


def test_a_task_may_enqueue_another():
    first = run(tasks.enqueue_another.enqueue(7))
    assert run(tasks.echo.get_result(first.return_value)).return_value == [[7], {}]


# -- arguments


@ENQUEUE
def test_arguments_become_plain_json(enqueue):
    result = enqueue(tasks.echo, (1, (2,)), b"caf\xc3\xa9", {"a": (b"x",)}, x={1: None}, y=1.5, z="\u2028 \U0001f600")
    args = [[1, [2]], "caf\u00e9", {"a": ["x"]}]
    assert result.args == args
    stored = tasks.echo.get_result(result.id)
    assert (stored.args, stored.kwargs) == (args, {"x": {"1": None}, "y": 1.5, "z": "\u2028 \U0001f600"})
    assert run(result).return_value == [args, stored.kwargs]


@ENQUEUE
@pytest.mark.parametrize("value", [datetime(2030, 1, 1, tzinfo=UTC), object(), {1}, [object()], lambda: None])
def test_arguments_that_are_no_json_are_refused(enqueue, value):
    with pytest.raises(TypeError, match="Unsupported type"):
        enqueue(tasks.echo, value)
    with pytest.raises(TypeError, match="Unsupported type"):
        enqueue(tasks.echo, a={"b": [value]})
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "plain JSON"),
        ([float("-inf")], "plain JSON"),
        ("x" * 70_000, "70,010 bytes of JSON; at most 65,536"),
        ("\u00e9" * 33_000, "66,010 bytes"),
        ("a\0b", "a NUL character"),
        ({"\\\0": 1}, "a NUL character"),
        ("\udcff", "half of a surrogate pair"),
    ],
    ids=range(7),
)
def test_arguments_that_not_every_database_stores_are_refused(value, message):
    with pytest.raises(InvalidArguments, match=message):
        tasks.echo.enqueue(value)
    with pytest.raises(InvalidArguments):
        tasks.echo.enqueue(a=[value])
    assert not Run.objects.exists()


def test_bytes_that_are_no_text_are_refused_and_what_only_looks_like_an_escape_is_not():
    with pytest.raises(ValueError, match="Unsupported value"):
        tasks.echo.enqueue(b"\xff")
    assert run(tasks.echo.enqueue("\\u0000", "\\ud800")).return_value == [["\\u0000", "\\ud800"], {}]


# -- validation


def test_a_task_is_a_function_of_a_module():
    def inner():
        """Not of the module's level."""

    for refused in (any, inner):
        with pytest.raises(InvalidTask, match="module level"):
            task(refused)


def takes_nothing():
    """Not a task yet."""


def takes_something_else(something, context):
    """Not a task yet."""


@pytest.mark.parametrize("function", [takes_nothing, takes_something_else])
def test_who_takes_the_context_has_it_as_the_first_argument(function):
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        task(takes_context=True)(function)


@pytest.mark.parametrize("priority", [-101, 101, 3.1])
def test_a_priority_is_a_whole_number_from_minus_100_to_100(priority):
    with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100"):
        tasks.echo.using(priority=priority)


@pytest.mark.parametrize("priority", [-100, 0, 100, 5.0, True])
def test_each_priority_within_that_is_enqueued(priority):
    made = tasks.echo.using(priority=priority)
    assert run(made.enqueue()).status == SUCCESSFUL


def test_a_queue_is_one_of_the_alias(settings):
    with pytest.raises(InvalidTask, match=r"Queue 'other' is not valid for backend\."):
        tasks.echo.using(queue_name="other")


def test_a_queue_is_one_that_workers_serve(settings):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": []}}
    with pytest.raises(InvalidTask, match=re.escape("DELAYQ['QUEUES'] has default, mail")):
        tasks.echo.using(queue_name="other")


def test_a_naive_time_is_refused_where_the_project_is_aware(settings):
    settings.USE_TZ = True
    with pytest.raises(InvalidTask, match=r"run_after must be an aware datetime\."):
        tasks.echo.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001


def test_an_unknown_alias_is_refused(settings):
    with pytest.raises(InvalidTaskBackend, match="'unknown' doesn't exist"):
        tasks.echo.using(backend="unknown")
    settings.TASKS = {**tasks_setting(), "missing": {"BACKEND": "does.not.exist"}}
    with pytest.raises(InvalidTaskBackend, match=r"Could not find backend 'does\.not\.exist'"):
        tasks.echo.using(backend="missing")


def test_a_task_that_was_enqueued_before_is_validated_anew_when_the_settings_change(settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": ["default", "mail"]}
    made = tasks.echo.using(queue_name="mail")
    made.enqueue("a")
    made.enqueue("b")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": ["default"]}
    with pytest.raises(InvalidTask, match=r"No worker serves the queue 'mail'"):
        made.enqueue("c")


class Choosy(DelayQBackend):
    """A backend of a project, which lets tasks through at some times only."""

    open = True

    def validate_task(self, task):
        super().validate_task(task)
        if not self.open:
            raise InvalidTask("Not now.")


def test_a_check_of_the_projects_own_is_asked_each_time(settings, monkeypatch):
    settings.TASKS = {"default": {"BACKEND": f"{__name__}.Choosy"}}
    made = tasks.echo.using(priority=1)
    made.enqueue("a")
    monkeypatch.setattr(Choosy, "open", False)
    with pytest.raises(InvalidTask, match="Not now"):
        made.enqueue("b")


@ENQUEUE
def test_a_task_that_no_worker_would_find_is_refused(enqueue):
    hidden = task(takes_nothing)
    with pytest.raises(UnknownTask, match=r"No installed app has a @task function 'tests\.jobs\.test_enqueue"):
        enqueue(hidden)


def test_a_time_cannot_be_given_to_the_decorator():
    with pytest.raises(TypeError, match="run_after"):
        task(run_after=timezone.now())(takes_nothing)


# -- using


def test_using_makes_another_task():
    when = timezone.now()
    made = tasks.echo.using(priority=5, queue_name="mail", run_after=when)
    assert (made.priority, made.queue_name, made.run_after) == (5, "mail", when)
    assert (tasks.echo.priority, tasks.echo.queue_name, tasks.echo.run_after) == (0, "default", None)
    again = made.using(priority=10)
    assert (again.priority, again.queue_name, again.run_after) == (10, "mail", when)
    same = tasks.echo.using()
    assert same == tasks.echo
    assert same is not tasks.echo


def test_using_takes_our_own_options_and_no_others():
    made = tasks.echo.using(max_attempts=3, backoff=timedelta(seconds=5), timeout=2.5, unique_key="k")
    assert (made.max_attempts, made.backoff, made.timeout, made.unique_key) == (3, timedelta(seconds=5), 2.5, "k")
    with pytest.raises(TypeError, match="unexpected keyword argument 'retries'"):
        tasks.echo.using(retries=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "'max_attempts' must be a whole number from 1 to 1,000, not 0"),
        ({"max_attempts": True}, "not True"),
        ({"backoff": -1}, "'backoff' must be a number of seconds or a timedelta, up to a year, not -1"),
        ({"timeout": "5"}, "'timeout' must be a number of seconds"),
        ({"unique_key": ""}, "unique_key must be a text of 1 to 255 characters"),
        ({"unique_key": 5}, "not 5"),
    ],
)
def test_our_own_options_are_validated_with_the_task(options, message):
    with pytest.raises(InvalidTask, match=re.escape(message)):
        tasks.echo.using(**options)


def test_what_was_used_is_what_stands_of_the_job(use_tz):
    when = timezone.now() + timedelta(hours=1)
    made = tasks.tell.using(priority=5, queue_name="mail", run_after=when)
    result = made.enqueue()
    stored = made.get_result(result.id).task
    assert (stored.priority, stored.queue_name, stored.backend) == (5, "mail", "default")
    assert timedelta(0) <= stored.run_after - when < timedelta(milliseconds=1)
    assert task_backends["default"].reschedule(result.id, timedelta(0))
    seen = run(result).return_value
    assert (seen["priority"], seen["queue"]) == (5, "mail")


# -- time


@pytest.mark.parametrize("how", ["datetime", "timedelta"])
def test_it_does_not_run_before_its_time(use_tz, how, broker):
    after = timedelta(hours=1)
    began = from_ms(broker.read_now_ms() - 1)
    made = app_tasks.add.using(run_after=timezone.now() + after if how == "datetime" else after)
    result = made.enqueue(1)
    standing = Standing(result)
    assert began <= from_ms(standing.view.score_ms) - after <= from_ms(broker.read_now_ms() + 1)
    assert row(result).due_at == from_ms(standing.view.score_ms)
    assert run(result).status == TaskResultStatus.READY
    standing.make_due()  # as a clock that is wrong, or damage, would
    assert run(result).status == TaskResultStatus.READY
    assert app_tasks.CALLS == []
    assert standing.view.score_ms == standing.view.point_ms, "it waits for what its row says"


def test_a_part_of_a_millisecond_does_not_make_it_start_early():
    when = datetime(2040, 1, 1, microsecond=1, tzinfo=UTC)
    made = tasks.echo.using(run_after=when if timezone.is_aware(timezone.now()) else when.replace(tzinfo=None))
    result = made.enqueue()
    assert row(result).due_at == from_ms(Standing(result).view.score_ms) == when.replace(microsecond=1000)


@pytest.mark.parametrize("ago", [timedelta(0), timedelta(days=-400)])
def test_a_time_that_has_passed_is_now(use_tz, ago):
    assert run(tasks.echo.using(run_after=ago).enqueue()).status == SUCCESSFUL
    assert run(tasks.echo.using(run_after=timezone.now() + ago).enqueue()).status == SUCCESSFUL


def test_a_duration_counts_from_the_moment_of_enqueuing():
    """Not from when `using` was called."""
    made = tasks.echo.using(run_after=timedelta(hours=1))
    first, second = row(made.enqueue()), row(made.enqueue())
    assert made.run_after == timedelta(hours=1)
    for job in (first, second):
        assert timedelta(0) <= job.due_at - job.created_at - timedelta(hours=1) < timedelta(seconds=1)


@pytest.mark.parametrize("after", [timedelta.max, timedelta.min])
def test_a_duration_beyond_the_calendar_is_refused(after):
    with pytest.raises(InvalidTask, match="years 1 to 9999"):
        tasks.echo.using(run_after=after)


# -- order


def test_the_more_urgent_go_first_and_equals_in_their_order():
    urgency = [0, -5, 100, 0, 7, -100, 7]
    for n, rank in enumerate(urgency):
        app_tasks.add.using(priority=rank).enqueue(n)
    run_burst(threads=1)
    assert [n for n, _ in app_tasks.CALLS] == [2, 4, 6, 0, 3, 1, 5]


def test_a_worker_runs_only_the_queues_it_serves():
    one, two = tasks.echo.enqueue(), tasks.echo.using(queue_name="mail").enqueue()
    run_burst(queues=("mail",))
    one.refresh()
    two.refresh()
    assert (one.status, two.status) == (TaskResultStatus.READY, SUCCESSFUL)


def test_what_is_more_urgent_does_not_start_early():
    later = app_tasks.add.using(priority=100, run_after=timedelta(seconds=30)).enqueue(1)
    app_tasks.add.using(priority=-100).enqueue(2)
    run_burst()
    assert app_tasks.CALLS == [(2, 1)]
    assert Standing(later).view.score_ms > Standing(later).broker.read_now_ms()


# -- before the apps are loaded


def test_a_task_may_be_imported_before_the_apps_are_loaded():
    program = (
        "from tests.app.tasks import noop; import django; django.setup(); "
        "from django_delayq.calls.registry import get_tasks; assert get_tasks()[noop.module_path] is noop"
    )
    subprocess.run([sys.executable, "-c", program], env=command_environment(), cwd=ROOT, check=True, timeout=600)


# -- pickle (Django 6.1)


def copied(value):
    """Return what comes back of a pickle."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


@pytest.mark.skipif("_reconstruct" not in vars(Task), reason="tasks can be pickled from Django 6.1 on")
def test_tasks_and_results_can_be_pickled():
    made = tasks.echo.using(priority=3, max_attempts=4, backoff=timedelta(seconds=1), unique_key="k")
    assert copied(made) == made
    result = made.enqueue(1)
    assert copied(result) == result
    assert run(copied(result)).status == SUCCESSFUL
