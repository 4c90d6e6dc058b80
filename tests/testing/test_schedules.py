"""`Runner.run_due` with schedules: the real judging and the real ledger, at instants that the test chooses."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import IntegrityError
from django.utils import timezone

from django_delayq import actions, conf
from django_delayq import index as lua
from django_delayq.exceptions import DelayQError, UnknownTask
from django_delayq.models import Origin, Run, Schedule
from django_delayq.testing import Runner, memory
from tests.app import tasks

pytestmark = pytest.mark.django_db

#: A Monday.
NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def runner(delayq: Runner) -> Runner:
    """It is Monday, nine o'clock."""
    delayq.start_at(NINE)
    return delayq


def hourly(**values) -> Schedule:
    values = {"name": "hourly", "task": "tests.app.tasks.noop", "kind": "cron", "cron": "0 * * * *", **values}
    return Schedule.objects.create(**values)


def told(runs: list[Run]) -> list[tuple[str, str, str]]:
    return [(f"{run.due_at:%H:%M:%S}", run.status, run.reason) for run in runs]


def test_everything_runs_at_its_own_time_and_in_that_order(runner):
    hourly()
    hourly(name="half", cron="30 * * * *")
    runs = runner.run_due(NINE + timedelta(hours=2, minutes=15))
    assert [(run.schedule_name, run.due_at, run.started_at) for run in runs] == [
        ("half", NINE + timedelta(minutes=30), NINE + timedelta(minutes=30)),
        ("hourly", NINE + HOUR, NINE + HOUR),
        ("half", NINE + timedelta(minutes=90), NINE + timedelta(minutes=90)),
        ("hourly", NINE + 2 * HOUR, NINE + 2 * HOUR),
    ]
    assert list(Run.objects.order_by("due_at")) == runs
    assert {run.status for run in Run.objects.all()} == {"succeeded"}
    assert runner.now == timezone.now().astimezone(UTC) == NINE + timedelta(hours=2, minutes=15)


def test_repeated_calls_go_on_where_the_last_one_ended(runner):
    hourly()
    assert [run.due_at for run in runner.run_due(HOUR)] == [NINE + HOUR]
    assert runner.run_due(59 * MINUTE) == []
    assert [run.due_at for run in runner.run_due(MINUTE)] == [NINE + 2 * HOUR]
    assert runner.run_due() == []


def test_going_back_is_an_error_that_says_so(runner):
    runner.run_due(HOUR)
    with pytest.raises(ValueError, match="would turn the clock back: it is 2026-03-02 10:00:00 UTC already"):
        runner.run_due(NINE)
    with pytest.raises(ValueError, match="would turn the clock back"):
        runner.move_to(-SECOND)
    with pytest.raises(ValueError, match="start_at\\(\\) comes first"):
        runner.start_at(NINE + 5 * HOUR)


def test_what_falls_due_without_a_worker_is_missed(runner):
    hourly()
    runner.move_to(NINE + timedelta(hours=3, minutes=30))
    assert told(runner.run_due()) == [("10:00:00", "skipped", "missed"), ("12:00:00", "succeeded", "")]
    row = Run.objects.get(status="skipped")
    assert (row.points, row.last_due_at) == (2, NINE + 2 * HOUR)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({"missed": "skip"}, [("10:00:00", "skipped", "missed")]),
        ({"grace": 3 * HOUR}, [("10:00:00", "succeeded", ""), ("11:00:00", "succeeded", "")]),
    ],
)
def test_the_policies_decide_about_late_points(runner, policies, expected):
    hourly(**policies)
    runner.move_to(NINE + timedelta(hours=2, minutes=30))
    assert told(runner.run_due()) == expected


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", [("10:00:00", "succeeded", ""), ("11:00:00", "skipped", "overlap"), ("13:00:00", "succeeded", "")]),
        (
            "queue_one",
            [("10:00:00", "succeeded", ""), ("11:00:00", "skipped", "overlap"), ("12:00:00", "succeeded", "")],
        ),
        ("queue_all", [("10:00:00", "succeeded", ""), ("11:00:00", "succeeded", "")]),
        ("allow", [("10:00:00", "succeeded", ""), ("11:00:00", "succeeded", ""), ("12:00:00", "succeeded", "")]),
    ],
)
def test_a_task_that_takes_its_time_overlaps_its_next_points(runner, overlap, expected):
    hourly(overlap=overlap)
    runner.takes(tasks.noop, timedelta(hours=2, minutes=30))
    assert told(runner.run_due(NINE + timedelta(hours=6, minutes=31)))[: len(expected)] == expected


def test_others_have_their_turn_while_a_task_takes_its_time(runner):
    hourly(max_runs=1)
    hourly(name="other", cron="*/30 * * * *", task="tests.app.tasks.add", args=[1])
    runner.takes("tests.app.tasks.noop", 45 * MINUTE)
    runs = runner.run_due(2 * HOUR)
    assert [(run.schedule_name, f"{run.started_at:%H:%M}", f"{run.finished_at:%H:%M}") for run in runs] == [
        ("other", "09:30", "09:30"),
        ("other", "10:00", "10:00"),
        ("other", "10:30", "10:30"),
        ("hourly", "10:00", "10:45"),
        ("other", "11:00", "11:00"),
    ]
    assert all(run.latency == timedelta(0) for run in runs)


def test_what_is_under_way_at_the_end_goes_on_with_the_next_call(runner):
    hourly(max_runs=1)
    runner.takes(tasks.noop, 45 * MINUTE)
    assert runner.run_due(HOUR) == []
    assert told(runner.run_due(HOUR)) == [("10:00:00", "succeeded", "")]


def test_what_takes_longer_than_its_timeout_is_stopped_by_it(runner):
    hourly(timeout=10 * MINUTE)
    runner.takes(tasks.noop, 45 * MINUTE)
    run = runner.run_due(HOUR + 10 * MINUTE)[0]
    assert (run.status, run.reason, run.duration) == (
        "failed",
        "django_delayq.exceptions.TaskTimeout: stopped after its timeout of 600 s",
        10 * MINUTE,
    )


def test_a_real_timeout_stops_a_task_in_this_thread(runner):
    hourly(task="tests.app.tasks.spin", args=[30], timeout=timedelta(seconds=0.1))
    (run,) = runner.run_due(HOUR)
    reason = "django_delayq.exceptions.TaskTimeout: stopped after its timeout of 0.1 s"
    assert (run.status, run.reason) == ("failed", reason)
    assert Run.objects.get() == run, "the test's connection is still there"


def test_failures_are_tried_again_after_their_backoff(runner, tmp_path):
    hourly(task="tests.app.tasks.flaky", args=[str(tmp_path / "x"), 2], max_attempts=3, backoff=MINUTE,
           max_runs=1)  # fmt: skip
    assert runner.run_due(HOUR + 47 * SECOND) == []
    assert Run.objects.get().status == "retrying"
    (run,) = runner.run_due(HOUR)
    assert (run.status, run.attempt, run.result) == ("succeeded", 3, "attempt 3")
    assert timedelta(minutes=2) < run.finished_at - run.due_at <= timedelta(minutes=3)


def test_intervals_one_offs_and_fixed_delays(runner):
    hourly(name="every", cron="", kind="every", every=20 * MINUTE, max_runs=2)
    hourly(name="once", cron="", kind="once", at=NINE + 30 * MINUTE)
    hourly(name="delay", cron="", kind="every", every=15 * MINUTE, every_from="finish", task="tests.app.tasks.anote",
           args=["/dev/null"])  # fmt: skip
    runner.takes(tasks.anote, 10 * MINUTE)
    runs = runner.run_due(NINE + 70 * MINUTE)
    assert [(run.schedule_name, f"{run.due_at:%H:%M}") for run in runs] == [
        ("every", "09:20"),
        ("delay", "09:15"),
        ("once", "09:30"),
        ("every", "09:40"),
        ("delay", "09:40"),
    ]
    assert Schedule.objects.get(name="every").state.condition == "finished"
    assert "delay" in {run.schedule_name for run in runner.run_due(NINE + 75 * MINUTE)}


def test_pausing_editing_and_orders_take_effect_as_in_production(runner):
    schedule = hourly()
    runner.run_due(30 * MINUTE)
    schedule.pause("holidays")
    run = actions.run_now(schedule)
    assert [(item.origin, item.status) for item in runner.run_due(2 * HOUR)] == [(Origin.MANUAL, "succeeded")]
    assert Run.objects.get(pk=run.pk).status == "succeeded"
    schedule.resume()
    assert [item.due_at for item in runner.run_due(HOUR)] == [NINE + 3 * HOUR]
    schedule.delete()
    assert runner.run_due(5 * HOUR) == []


@pytest.mark.parametrize("seen", [False, True])
def test_a_point_that_was_due_before_an_edit_still_runs_once(runner, seen):
    schedule = hourly()
    if seen:
        runner.run_due()
    runner.move_to(HOUR + SECOND)
    schedule.cron = "15 * * * *"
    schedule.save()
    assert told(runner.run_due(30 * MINUTE)) == [
        ("10:00:00", "succeeded", ""),
        ("10:00:00", "skipped", "edited"),
        ("10:15:00", "succeeded", ""),
    ]


def test_the_task_sees_the_time_of_its_point_and_its_context(runner, tmp_path):
    hourly(task="tests.testing.tasks.what_time", jitter=10 * MINUTE)
    (run,) = runner.run_due(HOUR + 15 * MINUTE)
    assert run.result == [run.started_at.isoformat()] * 2
    assert run.due_at < run.started_at < run.due_at + 10 * MINUTE
    assert run.claimed_at == run.started_at


def test_a_task_that_makes_work_for_ever_is_found_out(runner):
    hourly(cron="* * * * *")
    with pytest.raises(DelayQError, match="10 steps, and it is only 2026-03-02 09:10:00 UTC"):
        runner.run_due(HOUR, most=10)
    assert len(runner.run_due(HOUR)) == 60, "and it can go on"


def test_a_task_must_not_run_what_is_due(runner, monkeypatch):
    hourly(task="tests.testing.tasks.nested")
    monkeypatch.setattr("tests.testing.tasks.RUNNER", runner, raising=False)
    (run,) = runner.run_due(HOUR)
    assert "is called by a task that it runs" in run.error


def test_an_outcome_that_cannot_be_recorded_is_an_error(runner, monkeypatch):
    hourly()
    monkeypatch.setattr(runner.bench.trip, "record", refuse)
    with pytest.raises(DelayQError, match="could not be recorded"):
        runner.run_due(HOUR)


def refuse(batch):
    raise IntegrityError("no such row")


def test_what_was_written_by_sql_is_found_at_the_next_call(runner):
    schedule = hourly()
    runner.run_due(MINUTE)
    Schedule._base_manager.filter(pk=schedule.pk).update(cron="30 * * * *")
    assert [(run.due_at, run.started_at) for run in runner.run_due(HOUR)] == [(NINE + 30 * MINUTE,) * 2]


def test_what_a_task_schedules_runs_in_the_same_call(runner):
    hourly(task="tests.testing.tasks.plan", args=[10], max_runs=1)
    hourly(name="later", cron="30 * * * *")
    runs = runner.run_due(2 * HOUR)
    assert [run.schedule_name for run in runs] == ["later", "hourly", "planned", "later"]
    assert runs[2].started_at == NINE + 70 * MINUTE


def test_an_edit_does_not_hurry_a_retry(runner):
    schedule = hourly(task="tests.app.tasks.fail", max_attempts=2, backoff=HOUR)
    runner.run_due(HOUR)
    schedule.description = "edited"
    schedule.save()
    assert runner.run_due(40 * MINUTE) == []
    run = runner.run_due(20 * MINUTE)[0]
    assert (run.status, run.attempt, run.reason) == ("failed", 2, "RuntimeError: no luck") and "Traceback" in run.error


def test_another_clock_may_follow(runner):
    seen = []
    runner.follow(seen.append)
    hourly()
    runner.run_due(2 * HOUR)
    assert seen == [NINE, NINE + HOUR, NINE + 2 * HOUR, NINE + 2 * HOUR]


def test_a_clock_that_another_package_has_replaced_is_replaced_too(monkeypatch):
    class Other(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2000, 1, 1, tzinfo=tz)

    monkeypatch.setattr(timezone, "datetime", Other)
    with Runner(NINE):
        assert timezone.now().astimezone(UTC) == NINE
    assert timezone.datetime is Other


def test_mistakes_of_a_test_are_told(runner, settings):
    with pytest.raises(DelayQError, match="A Runner is active already"), Runner():
        pass
    with pytest.raises(UnknownTask, match=r"Did you mean 'tests\.app\.tasks\.noop'"):
        runner.takes("tests.app.tasks.nop", HOUR)
    assert timezone.now().astimezone(UTC) == NINE, "and it is still there"


def test_settings_may_change_meanwhile(runner, settings):
    settings.DELAYQ = {**settings.DELAYQ, "BATCH_SIZE": 7}
    assert (conf.get_config().batch_size, conf.get_config().mirror) == (7, False)


def test_naive_instants_are_refused_where_there_are_time_zones(settings):
    if settings.USE_TZ:
        with pytest.raises(ValueError, match="is naive"):
            Runner(datetime(2026, 3, 2))  # noqa: DTZ001
    else:
        assert Runner(datetime(2026, 3, 2, 9)).now == NINE  # noqa: DTZ001


def test_the_index_in_memory_ranks_as_the_scripts_do():
    prelude = (Path(lua.__file__).parent / "lua" / "_prelude.lua").read_text()
    assert f"local STEP_MS = {memory.STEP_MS}\n" in prelude
