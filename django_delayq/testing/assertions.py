"""Assertions about schedules and jobs. Each failure message lists what exists instead."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from .. import ledger
from ..backend.preparing import resolve_instant
from ..calls import build_result
from ..calls.compat import AnyResult, AnyTask, normalize_json
from ..calls.registry import get_task
from ..ledger import chain
from ..models import Origin, Run, Schedule
from ..recurrence import Recurrence, to_ms


def next_points(schedule: Schedule | Recurrence, n: int = 5, after: datetime | None = None) -> list[datetime]:
    """Return the next `n` due points after an instant, by default now; fewer if the recurrence ends.

    For a schedule, reads its row and returns the points not decided yet. A recurrence needs `after`, an aware instant.
    """
    if isinstance(schedule, Schedule):
        fresh = ledger.find_schedule(schedule.pk) or schedule
        if not fresh.enabled:
            return []
        return [point.due_at for point in fresh.preview(n, after) if point.runs]
    if after is None:
        raise ValueError("A recurrence has no now: next_points(recurrence, n, after=…).")
    found: list[datetime] = []
    while len(found) < n and (point := schedule.next_after(found[-1] if found else after)) is not None:
        found.append(point)
    return found


class Assertions:
    def assert_scheduled(
        self,
        name_or_task: str | AnyTask,
        *,
        at: datetime | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Return the enabled schedule with this name or task that will run; the AssertionError lists all schedules.

        `at`: its next due point. `args`, `kwargs`: the task's arguments. None matches anything.
        """
        what = name_or_task if isinstance(name_or_task, str) else name_or_task.module_path
        rows = list(Schedule._base_manager.using(ledger.get_database()).select_related("state").order_by("name"))
        for row in rows:
            if what in (row.name, row.task) and _is_called_with(row, args, kwargs):
                upcoming = next_points(row, 1)
                if upcoming and (at is None or _is_same(at, upcoming[0])):
                    return row
        wanted = _format_wanted(at=at, args=args, kwargs=kwargs)
        raise AssertionError(f"{what!r} is not scheduled{wanted}. Schedules: {_format_list(_format_schedule, rows)}")

    def assert_not_scheduled(self, name_or_task: str | AnyTask) -> None:
        """Check that no schedule with this name or task will run; the AssertionError shows one that will."""
        try:
            row = self.assert_scheduled(name_or_task)
        except AssertionError:
            return
        raise AssertionError(f"There is a schedule that will run: {_format_schedule(row)}.")

    @property
    def enqueued(self) -> list[AnyResult]:
        """The results of all jobs, in order of enqueueing, except jobs deleted with their outcome (`result_ttl` 0)."""
        rows = Run._base_manager.using(ledger.get_database()).filter(origin=Origin.JOB).order_by("pk")
        return [build_result(get_task(row.task), row) for row in rows]

    def assert_enqueued(
        self,
        task: AnyTask | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        run_after: datetime | None = None,
        count: int | None = None,
    ) -> list[AnyResult]:
        """Return the results of the jobs of this task that were enqueued; the AssertionError lists all jobs.

        `args`, `kwargs`, `run_after`: as enqueued; None matches anything. `count`: exact number; None: at least one.
        """
        path = task if isinstance(task, str) else task.module_path
        jobs = self.enqueued
        found = [
            job
            for job in jobs
            if job.task.module_path == path
            and _is_called_with(job, args, kwargs)
            and (run_after is None or _is_same(run_after, job.task.run_after))
        ]
        if len(found) == count or (count is None and found):
            return found
        wanted = _format_wanted(args=args, kwargs=kwargs, run_after=run_after, count=count)
        raise AssertionError(f"{path} was not enqueued{wanted}. Jobs: {_format_list(_format_job, jobs)}")


def _is_called_with(item: Schedule | AnyResult, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> bool:
    return (args is None or normalize_json(list(args)) == item.args) and (
        kwargs is None or normalize_json(dict(kwargs)) == item.kwargs
    )


def _is_same(one: datetime, other: datetime | None) -> bool:
    """Compare two instants in whole ms; naive ones are local time."""
    return other is not None and to_ms(resolve_instant(one)) == to_ms(resolve_instant(other))


def _format_wanted(**wanted: Any) -> str:
    named = [f"{name}={value}" for name, value in wanted.items() if value is not None]
    return f" with {', '.join(named)}" if named else ""


def _format_list(format_item: Callable[[Any], str], items: Sequence[Any]) -> str:
    return "".join(f"\n  {format_item(item)}" for item in items) or "none."


def _format_call(path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    shown = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{path}({', '.join(shown)})"


def _format_schedule(row: Schedule) -> str:
    text = f"{row.name!r}: {_format_call(row.task, row.args, row.kwargs)}"
    if not row.enabled:
        return f"{text}, paused {row.pause_reason}".rstrip()
    upcoming = next_points(row, 1)
    if not upcoming:
        return f"{text}, {chain.get_state(row).condition_reason or 'no due point is left'}"
    return f"{text}, due {upcoming[0]:%Y-%m-%d %H:%M:%S} UTC"


def _format_job(result: AnyResult) -> str:
    text = f"{_format_call(result.task.module_path, result.args, result.kwargs)}, {result.status.lower()}"
    return text if result.task.run_after is None else f"{text}, for {result.task.run_after}"
