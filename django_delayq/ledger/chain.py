"""Computes a schedule's next due point, and advances its state by an outcome. Does no I/O, and reads no clock.

Note [Chains have no gaps]
A schedule's chain continues at its first missing point: the oldest open row of the chain, else the first point after
max(last_due_at, effective_from). So no point of an outage is forgotten, and an edit creates no due point in the past.
"""

from datetime import datetime

from ..exceptions import InvalidRecurrence
from ..models import Condition, Origin, Schedule, ScheduleState, Status
from ..models.run import OPEN
from ..recurrence import compute_wake, from_ms, to_ms
from ..recurrence.point import to_micros
from ..recurrence.policy import MISSED, OVERLAP
from .rows import AnyRun, AnySchedule, AnyState, RunRow, ScheduleRow, StateRow


def format_member(schedule_pk: int) -> str:
    return f"s{schedule_pk}"


def format_run_member(run: AnyRun) -> str:
    """Return the member of a row: `j<pk>` for jobs and backfills, else `r<pk>`. See Note [Two lanes per claim]."""
    return f"{'j' if run.origin in (Origin.JOB, Origin.BACKFILL) else 'r'}{run.pk}"


def get_run_generation(run: AnyRun) -> int:
    """Return the creation time in µs since the epoch, plus 1 per retry: a reused primary key has another generation."""
    return to_micros(run.created_at) + (run.generation if run.token else 0)


def parse_member(member: str) -> tuple[str, int] | None:
    """Return ('s', primary key) for a schedule's member, ('r', primary key) for a row's, None for anything else."""
    kind, number = member[:1], member[1:]
    if kind not in ("s", "r", "j") or not (number.isascii() and number.isdecimal()) or len(number) > 18:
        return None
    return "s" if kind == "s" else "r", int(number)


def get_state(schedule: AnySchedule) -> AnyState:
    """Return the schedule's state, or a blank unsaved one."""
    try:
        return schedule.state
    except ScheduleState.DoesNotExist:
        blank = ScheduleState(schedule_id=schedule.pk)
        schedule.state = blank
        return blank


def find_next_point(schedule: AnySchedule, state: AnyState) -> datetime | None:
    """Return the first undecided point, in whole ms, or None. `InvalidRecurrence`: the row has no usable recurrence."""
    if schedule.max_runs is not None and state.run_count >= schedule.max_runs:
        return None
    rule, base = schedule.get_rule_and_base(state)
    if schedule.overlap not in OVERLAP or schedule.missed not in MISSED:
        schedule.policies  # noqa: B018 - raises, and names the one that is not known
    try:
        point = rule.next_after(base)
        if point is None:
            return None
        if point.microsecond % 1000:
            point = from_ms(to_ms(point))
        if schedule.jitter:
            find_wake(schedule, point)
    except OverflowError:
        raise InvalidRecurrence("The next due point, with its jitter, lies beyond the calendar.") from None
    return point


def find_undecided(schedule: AnySchedule, state: AnyState) -> datetime | None:
    """Return the first point that definitions before the last edit left undecided, as the edit noted it (rule R8)."""
    due = state.next_due_at
    if due is None or not schedule.created_at < due <= schedule.effective_from:
        return None
    return due if state.last_due_at is None or due > state.last_due_at else None


def find_wake(schedule: AnySchedule, point: datetime) -> datetime:
    """Return when a point is to be claimed, with its jitter."""
    return compute_wake(point, schedule.jitter, schedule.name)


def advance(state: StateRow, run: RunRow) -> bool:
    """Update a state, in memory, with one row; return whether the row decides points of the chain."""
    handed_over = run.separate and run.origin == Origin.DUE and run.status == Status.QUEUED
    is_final = run.status not in OPEN
    decides = handed_over or (is_final and not run.separate)
    if decides:
        last = run.last_due_at or run.due_at
        state.last_due_at = last if state.last_due_at is None else max(state.last_due_at, last)
        state.run_count += run.separate  # handed over; its end does not count again
    if not is_final:
        return decides
    latency = run.latency
    state.last_status, state.last_outcome_at, state.last_latency_ms = run.status, run.finished_at, None
    if run.status == Status.SKIPPED or run.started_at is None or run.claimed_at is None:
        return decides
    state.last_latency_ms = None if latency is None else int(latency.total_seconds() * 1000)
    state.failing_streak = 0 if run.status == Status.SUCCEEDED else state.failing_streak + 1
    if run.origin == Origin.DUE:
        state.run_count += not run.separate
        finished = run.finished_at or run.started_at
        unbroken = state.last_finished_at is not None and run.due_at <= state.last_finished_at
        if not unbroken or state.busy_from is None:
            state.busy_from = run.claimed_at
        state.last_finished_at = finished if state.last_finished_at is None else max(state.last_finished_at, finished)
    return decides


def settle_state(schedule: ScheduleRow, state: StateRow) -> datetime | None:
    """Set a state's next point in memory, or why an enabled schedule has none; return the point."""
    state.next_due_at = None
    if not schedule.enabled:
        return None
    try:
        state.next_due_at = point = find_next_point(schedule, state)
    except InvalidRecurrence as error:
        state.condition, state.condition_reason = Condition.BROKEN, str(error)[:500]
        return None
    state.condition, state.condition_reason = Condition.ACTIVE, ""
    if point is None:
        state.condition = Condition.FINISHED
        state.condition_reason = "There is no due point left before its end."
        if schedule.max_runs is not None and state.run_count >= schedule.max_runs:
            state.condition_reason = f"It has run {state.run_count} times; its max_runs is {schedule.max_runs}."
        elif schedule.kind == Schedule.Kind.ONCE:
            state.condition_reason = "The one-off time has passed."
    return point
