"""Assertions about schedules and jobs. Each failure message lists what exists instead."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .. import ledger
from ..backend.preparing import moment
from ..calls import result_of
from ..calls.compat import AnyResult, AnyTask, normalize_json
from ..calls.registry import get_task
from ..ledger import chain
from ..models import Origin, Run, Schedule
from ..recurrence import Recurrence, to_ms

if TYPE_CHECKING:
    from .bench import Bench
    from .following import Following

#: Maximum items listed in a message.
SHOWN = 10


def next_points(schedule: Schedule | Recurrence, n: int = 5, after: datetime | None = None) -> list[datetime]:
    """Return the next `n` due points after an instant, by default now; fewer if the recurrence ends.

    For a schedule, reads its row and returns the points that are not decided yet. A recurrence needs `after`.

    Raises:
        ValueError: `after` is naive, or missing for a recurrence.
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
    """The assertions of `Runner`."""

    bench: "Bench"
    following: "Following"

    # -- schedules

    def assert_scheduled(
        self,
        name_or_task: str | AnyTask,
        *,
        at: datetime | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Check that an enabled schedule with this name or task will run, and return it.

        `at`: its next due point. `args`, `kwargs`: the task's arguments. None matches anything.

        Raises:
            AssertionError: There is none; the message lists the schedules that exist.
        """
        what = name_or_task if isinstance(name_or_task, str) else name_or_task.module_path
        rows = list(Schedule._base_manager.using(ledger.database()).select_related("state").order_by("name"))
        named = [row for row in rows if what in (row.name, row.task)]
        if not named:
            raise AssertionError(f"Nothing is scheduled as {what!r}. {_listed('There are', map(_schedule, rows))}")
        for row in named:
            upcoming = next_points(row, 1)
            if upcoming and _called_with(row, args, kwargs) and (at is None or _same(at, upcoming[0])):
                return row
        call = _asked(args, kwargs)
        wanted = (f" at {at}" if at is not None else "") + (call and f" with {call}")
        raise AssertionError(f"{what!r} is not scheduled{wanted}. {_listed('There is', map(_schedule, named))}")

    def assert_not_scheduled(self, name_or_task: str | AnyTask) -> None:
        """Check that no schedule with this name or task will run; the AssertionError shows one that will."""
        try:
            row = self.assert_scheduled(name_or_task)
        except AssertionError:
            return
        raise AssertionError(f"There is a schedule that will run: {_schedule(row)}.")

    # -- jobs

    @property
    def enqueued(self) -> list[AnyResult]:
        """The results of all jobs, in order of enqueueing, except jobs deleted with their outcome (`result_ttl` 0)."""
        rows = Run._base_manager.using(ledger.database()).filter(origin=Origin.JOB).order_by("pk")
        return [_result(row) for row in rows]

    def assert_enqueued(
        self,
        task: AnyTask | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        run_after: datetime | None = None,
        count: int | None = None,
    ) -> list[AnyResult]:
        """Check that jobs of this task were enqueued, and return their results.

        `args`, `kwargs`, `run_after`: as enqueued; None matches anything. `count`: exact number; None: at least one.

        Raises:
            AssertionError: The number differs; the message lists the jobs of this task, or all jobs.
        """
        path = task if isinstance(task, str) else task.module_path
        everything = self.enqueued
        of_task = [result for result in everything if result.task.module_path == path]
        found = [
            result
            for result in of_task
            if _called_with(result, args, kwargs) and (run_after is None or _same(run_after, result.task.run_after))
        ]
        if len(found) == count or (count is None and found):
            return found
        wanted = path + _asked(args, kwargs) + ("" if run_after is None else f" for {run_after}")
        was = "was not enqueued" if count is None else f"was enqueued {len(found)} times, not {count}"
        shown = _listed("Enqueued were", map(_job, of_task or everything))
        raise AssertionError(f"{wanted} {was}. {shown}")


def _result(row: Run) -> AnyResult:
    return result_of(get_task(row.task), row)


def _called_with(item: Schedule | AnyResult, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> bool:
    """Compare the arguments as JSON; None matches anything."""
    return (args is None or normalize_json(list(args)) == item.args) and (
        kwargs is None or normalize_json(dict(kwargs)) == item.kwargs
    )


def _same(one: datetime, other: datetime | None) -> bool:
    """Compare two instants in whole ms; naive ones are local time."""
    return other is not None and to_ms(moment(one)) == to_ms(moment(other))


def _listed(begin: str, items: Any) -> str:
    texts = list(items)
    if not texts:
        return f"{begin}: nothing."
    more = f"\n  … and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return begin + ":" + "".join(f"\n  {text}" for text in texts[:SHOWN]) + more


def _call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    shown = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"({', '.join(shown)})"


def _asked(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
    return "" if args is None and kwargs is None else _call(args or (), kwargs or {})


def _schedule(row: Schedule) -> str:
    text = f"{row.name!r}: {row.task}{_call(row.args, row.kwargs)}, "
    if not row.enabled:
        return text + (f"paused ({row.pause_reason})" if row.pause_reason else "paused")
    points = next_points(row, 3)
    if not points:
        return text + (chain.state_of(row).condition_reason or "no due point is left")
    return text + "due " + ", ".join(f"{point:%Y-%m-%d %H:%M:%S} UTC" for point in points)


def _job(result: AnyResult) -> str:
    text = f"{result.task.module_path}{_call(result.args, result.kwargs)}, {result.status.lower()}"
    return text if result.task.run_after is None else f"{text}, for {result.task.run_after}"
