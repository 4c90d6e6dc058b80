"""Did every due point get its outcome? Compares the recurrences with the ledger; changes neither."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q

from django_delayq.models import Condition, Run, Schedule, Status

#: Due points are kept in whole milliseconds.
ROUNDING = timedelta(milliseconds=1)
#: The latest at which a fixed delay's next point may be seen in the ledger's times.
SLACK = timedelta(seconds=1)
COLUMNS = ("due", "succeeded", "failed", "skipped", "lost", "open", "latency p50", "latency p99")


@dataclass
class Line:
    """What became of one schedule's due points."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    missing: list[datetime] = field(default_factory=list)
    unfinished: list[datetime] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def due(self) -> int:
        """How many due points there were."""
        return self.outcomes.total() + len(self.missing)


@dataclass(frozen=True)
class Report:
    """What became of all due points."""

    lines: Sequence[Line]

    @property
    def total(self) -> Line:
        """All schedules together."""
        total = Line("all")
        for line in self.lines:
            total.outcomes += line.outcomes
            total.missing += line.missing
            total.unfinished += line.unfinished
            total.latencies_ms += line.latencies_ms
        return total

    @property
    def complaints(self) -> list[str]:
        """What is wrong; empty if every due point has its outcome and some ran."""
        found = [
            f"{line.name}: due {point:%H:%M:%S.%f} UTC has {what}"
            for line in self.lines
            for what, points in (("no run in the ledger", line.missing), ("no outcome yet", line.unfinished))
            for point in points
        ]
        if not self.total.outcomes[Status.SUCCEEDED] + self.total.outcomes[Status.FAILED]:
            found.append("not a single run was executed")
        return found

    def table(self) -> str:
        """Return the figures as text. Latencies are in milliseconds."""
        lines = [line for line in self.lines if line.due]
        if not lines:
            return "No due point came up."
        width = max([len(line.name) for line in lines] + [len("schedule")])
        rule = "─" * (width + len(COLUMNS) * 11)
        rows = [_row("schedule", width, COLUMNS), rule]
        rows += [_row(line.name, width, _figures(line)) for line in lines]
        return "\n".join([*rows, rule, _row("all", width, _figures(self.total)), "(latency: claimed − due, in ms)"])


def judge(start: datetime, end: datetime) -> Report:
    """Report on the due points after `start` and not after `end`."""
    schedules = Schedule.objects.select_related("state").order_by("pk")
    runs = Run.objects.filter(origin="due").filter(Q(due_at__gt=start) | Q(last_due_at__gt=start), due_at__lte=end)
    by_schedule: dict[int, list[Run]] = {}
    for run in runs.defer("error", "result").order_by("due_at"):
        by_schedule.setdefault(run.schedule_id, []).append(run)
    return Report([_line(schedule, by_schedule.get(schedule.pk, []), start, end) for schedule in schedules])


def _line(schedule: Schedule, runs: Sequence[Run], start: datetime, end: datetime) -> Line:
    line = Line(schedule.name)
    unseen = {run.pk: run for run in runs if run.due_at > start}
    for point in _expected(schedule, runs, start, end):
        run = _covering(runs, point)
        if run is None:
            line.missing.append(point)
        else:
            line.outcomes[run.status] += 1
            unseen.pop(run.pk, None)
    for run in unseen.values():  # a fixed delay, or a definition that has been edited since
        line.outcomes[run.status] += 1
    line.unfinished = [run.due_at for run in runs if Status(run.status).is_open]
    line.latencies_ms = [
        run.latency / timedelta(milliseconds=1)
        for run in runs
        if run.latency is not None and run.status in (Status.SUCCEEDED, Status.FAILED)
    ]
    return line


def _expected(schedule: Schedule, runs: Sequence[Run], start: datetime, end: datetime) -> Iterable[datetime]:
    """Yield the due points that the definition, as it is now, has in this time."""
    if not schedule.enabled:
        return
    state = getattr(schedule, "state", None)
    if state is not None and state.condition != Condition.ACTIVE:
        end = min(end, state.last_due_at or start)
    point: datetime | None = max(start, schedule.effective_from)
    if schedule.every_from == Schedule.EveryFrom.FINISH and schedule.kind == Schedule.Kind.EVERY:
        yield from _expected_after_finish(schedule, runs, start, end)
        return
    while point is not None and (point := schedule.recurrence.next_after(point)) and point <= end:
        yield point


def _expected_after_finish(
    schedule: Schedule, runs: Sequence[Run], start: datetime, end: datetime
) -> Iterable[datetime]:
    """Yield the point that must follow the last run that is known. The earlier ones are what the ledger says."""
    last = runs[-1] if runs else Run.objects.filter(origin="due").filter(schedule=schedule, due_at__lte=start).first()
    if last is None:
        after = schedule.recurrence.next_after(max(start, schedule.effective_from))
    else:
        after = last.finished_at and last.finished_at + (schedule.every or timedelta(0)) + SLACK
    if after is not None and start < after <= end:
        yield after


def _covering(runs: Sequence[Run], point: datetime) -> Run | None:
    for run in runs:
        if run.due_at - ROUNDING <= point <= (run.last_due_at or run.due_at) + ROUNDING:
            return run
    return None


def _figures(line: Line) -> tuple[str, ...]:
    counts = [line.outcomes[status] for status in ("succeeded", "failed", "skipped", "lost")]
    unfinished = line.due - sum(counts)
    return tuple(
        map(str, [line.due, *counts, unfinished, *(_percentile(line.latencies_ms, share) for share in (0.5, 0.99))])
    )


def _percentile(values: Sequence[float], share: float) -> str:
    if not values:
        return "–"
    return f"{sorted(values)[min(int(len(values) * share), len(values) - 1)]:.1f}"


def _row(name: str, width: int, cells: Sequence[str]) -> str:
    return f"{name:<{width}}" + "".join(f"{cell:>11}" for cell in cells)
