"""How a project uses the public API, for mypy: it is checked, not run. Says what users are promised of the types."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from django.db.models import QuerySet

from django_delayq import RunContext, isolated
from django_delayq.actions import backfill, run_now
from django_delayq.backend import DelayQBackend
from django_delayq.calls import DelayQTask, JobContext, JobResult
from django_delayq.exceptions import WaitRefused
from django_delayq.models import Run, Schedule
from django_delayq.recurrence import Cron, Every, Once
from django_delayq.testing import Runner, next_points

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def recurrences() -> Sequence[datetime | None]:
    rules = Cron("0 9 * * 1-5", timezone="Europe/Riga"), Every(timedelta(minutes=5), anchor=NOON), Once(NOON)
    return [rule.next_after(NOON) for rule in rules]


def schedules() -> None:
    schedule = Schedule.objects.create(name="s", task="shop.tasks.t", kind="every", every=timedelta(minutes=5))
    assert_type(schedule, Schedule)
    schedule.pause("holidays")
    assert_type(run_now(schedule), Run)
    assert_type(backfill(schedule, NOON, NOON), list[Run])
    assert_type([point.due_at for point in schedule.preview(5)], list[datetime])
    failed: QuerySet[Run] = Run.objects.filter(status="failed")
    assert_type(failed.count(), int)


def contexts(run: RunContext, job: JobContext) -> str:
    assert_type(run.lease_lost, bool)
    assert_type(run.due_at, datetime)
    assert_type(run.schedule, Schedule)
    return run.idempotency_key + job.idempotency_key


def work(days: int) -> str:
    return str(days)


def isolation(task: DelayQTask) -> None:
    assert_type(isolated(task), DelayQTask)
    assert_type(isolated(memory_mb=512)(task), DelayQTask)
    assert_type(isolated(work)(3), str)
    assert_type(isolated(memory_mb=512)(work)(3), str)


def jobs(task: DelayQTask, backend: DelayQBackend) -> None:
    result = task.using(run_after=timedelta(days=1), max_attempts=3, unique_key="k").enqueue(1)
    assert_type(backend.cancel(result.id), bool)
    assert_type(backend.reschedule(result.id, NOON), bool)
    assert_type(result, JobResult)
    assert_type(result.wait(5), JobResult)
    followed = task.using(on_success=task, on_failure="shop.tasks.tell").enqueue()
    assert_type(followed.wait(timedelta(seconds=5)), JobResult)
    results = task.enqueue_many([((1,), {}), ((2,), {"b": 3})])
    identifiers: list[str] = [one.id for one in results]
    assert identifiers


async def waits(task: DelayQTask) -> Any:
    try:
        return (await (await task.aenqueue()).await_(timeout=1.5)).return_value
    except TimeoutError as error:
        timeout: TimeoutError = error
        raise WaitRefused("too late") from timeout


def tests(schedule: Schedule, task: DelayQTask) -> None:
    with Runner(NOON) as delayq:
        assert_type(delayq, Runner)
        assert_type(delayq.run_due(timedelta(hours=1)), list[Run])
        assert_type(delayq.now, datetime)
        assert_type(delayq.assert_scheduled(task, at=NOON, kwargs={"a": 1}), Schedule)
        found: list[Any] = delayq.assert_enqueued("shop.tasks.t", args=[1], count=1)
        assert_type(next_points(schedule, 3), list[datetime])
        assert found
