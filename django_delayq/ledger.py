"""The ledger: reads what is decided, writes outcomes and states. Never touches Redis.

Note [Compare and set]
Redis is settled after the ledger, and only by whoever won the ledger's compare-and-set. A new row is won by the unique
constraint on (schedule, origin, due_at); an existing one by an UPDATE that names the status, attempt and fence that
were read, compared for equality only (fences are not ordered: a clock may step back, Redis may be flushed). A row that
already carries my fence and worker is mine: the reply to an earlier COMMIT was lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from django.db import IntegrityError, connections, router, transaction
from django.db.models import Exists, OuterRef

from . import chain
from .exceptions import InvalidRecurrence, MissingTables
from .fields import utcnow
from .models import Condition, Origin, Run, Schedule, ScheduleState, Status
from .models.run import OPEN

STATE_FIELDS = [
    "last_due_at", "next_due_at", "last_status", "last_outcome_at", "last_lag_ms", "last_finished_at", "busy_from",
    "failing_streak", "run_count", "condition", "condition_reason",
]  # fmt: skip
ROW_FIELDS = [
    "status", "reason", "attempt", "reclaims", "fence", "claimed_at", "started_at", "finished_at", "worker", "error",
    "result", "generation", "task",
]  # fmt: skip


class Won(Enum):
    """What became of a write."""

    YES = "yes"
    LOST = "lost"  # somebody else decided this point: do not touch Redis
    GONE = "gone"  # the schedule was deleted or made anew: nothing to record, drop the member


@dataclass(slots=True)
class Version:
    """What was read of an existing row, to be compared when it is written."""

    status: str
    attempt: int
    fence: str


@dataclass(slots=True)
class Outcome:
    """A row to be written: new where `seen` is None, else an update of the row that looked like `seen`.

    `repeated` is set where an earlier call had written it, and only the reply to its COMMIT was lost.
    After `record`, `schedule` and `next_point` hold the definition and the chain's next point as of that transaction.
    """

    run: Run
    schedule: Schedule
    seen: Version | None = None
    next_point: datetime | None = None
    repeated: bool = False


def database() -> str:
    """Return the alias of the database that holds schedules, states and runs together."""
    return router.db_for_write(Schedule)


def check_tables() -> None:
    """Make sure that the migrations were run.

    Raises:
        MissingTables: They were not; says what to do.
    """
    using = database()
    if Schedule._meta.db_table not in connections[using].introspection.table_names():
        raise MissingTables(f"The database {using!r} has no tables of django_delayq. Run: manage.py migrate")


def version_of(run: Run) -> Version:
    """Return what identifies this state of a row."""
    return Version(run.status, run.attempt, run.fence)


def load_schedules(pks: Iterable[int]) -> dict[int, Schedule]:
    """Return definitions with their states by primary key, in one query on the primary database."""
    rows = Schedule._base_manager.using(database()).filter(pk__in=list(pks)).select_related("state")
    return {row.pk: row for row in rows}


def load_open_rows(pks: Iterable[int]) -> dict[int, list[Run]]:
    """Return the open rows of the chains of these schedules, oldest first. Rows apart from the chain are not part."""
    rows = Run._base_manager.using(database()).filter(
        schedule_id__in=list(pks), apart=False, status__in=[Status.RUNNING, Status.RETRYING]
    )
    found: dict[int, list[Run]] = {}
    for row in rows.order_by("due_at"):
        found.setdefault(row.schedule_id, []).append(row)
    return found


def load_runs(pks: Iterable[int]) -> dict[int, Run]:
    """Return runs by primary key."""
    return {row.pk: row for row in Run._base_manager.using(database()).filter(pk__in=list(pks))}


def record(outcomes: Sequence[Outcome]) -> list[Won]:
    """Write rows and states in one transaction; say per outcome whether it was won. See Note [Compare and set].

    After an exception nothing is written, and the same call may be repeated.
    """
    using = database()
    with transaction.atomic(using=using):
        won = _write(outcomes, using)
        _advance(outcomes, won, using)
    return won


def start(outcomes: Sequence[Outcome]) -> list[Won]:
    """Write `running` rows before an execution that may be a repetition; states stay. See Note [Compare and set]."""
    using = database()
    with transaction.atomic(using=using):
        return _write(outcomes, using)


def _write(outcomes: Sequence[Outcome], using: str) -> list[Won]:
    won = _insert(outcomes, using)
    for index, outcome in enumerate(outcomes):
        if outcome.seen is not None:
            won[index] = _update(outcome, outcome.seen, using)
    return won


def _insert(outcomes: Sequence[Outcome], using: str) -> list[Won]:
    won = [Won.LOST] * len(outcomes)
    new = [index for index, outcome in enumerate(outcomes) if outcome.seen is None]
    if not new:
        return won
    try:
        with transaction.atomic(using=using):
            Run._base_manager.using(using).bulk_create([outcomes[index].run for index in new])
        for index in new:
            won[index] = Won.YES
    except IntegrityError:
        for index in new:
            won[index] = _insert_one(outcomes[index], using)
    return won


def _insert_one(outcome: Outcome, using: str) -> Won:
    run = outcome.run
    run.pk = None
    run._state.adding = True
    try:
        with transaction.atomic(using=using):
            run.save(using=using, force_insert=True)
        return Won.YES
    except IntegrityError:
        key = {"schedule_id": run.schedule_id, "origin": run.origin, "due_at": run.due_at}
        return _mine(outcome, key, using)


def _update(outcome: Outcome, seen: Version, using: str) -> Won:
    run = outcome.run
    rows = Run._base_manager.using(using).filter(pk=run.pk, status=seen.status, attempt=seen.attempt, fence=seen.fence)
    if rows.update(**{name: getattr(run, name) for name in ROW_FIELDS}):
        return Won.YES
    return _mine(outcome, {"pk": run.pk}, using)


def _mine(outcome: Outcome, key: dict[str, object], using: str) -> Won:
    run = outcome.run
    same = {"fence": run.fence, "worker": run.worker, "status": run.status, "attempt": run.attempt}
    row = Run._base_manager.using(using).filter(**key, **same).exclude(fence="").first()
    if row is None:
        return Won.LOST
    run.pk = row.pk
    outcome.repeated = True
    return Won.YES


def _advance(outcomes: Sequence[Outcome], won: list[Won], using: str) -> None:
    """Move the states of the won outcomes on. The schedules are locked, so that a deletion or a second worker waits."""
    pks = sorted({outcome.schedule.pk for outcome, result in zip(outcomes, won, strict=True) if result is Won.YES})
    if not pks:
        return
    current = _lock_schedules(pks, outcomes, using)
    states = ScheduleState._base_manager.using(using).in_bulk(pks)
    for index, outcome in enumerate(outcomes):
        if won[index] is not Won.YES:
            continue
        row = current.get(outcome.schedule.pk)
        if row is None or row.created_at != outcome.schedule.created_at:
            Run._base_manager.using(using).filter(pk=outcome.run.pk).delete()
            won[index] = Won.GONE
            continue
        outcome.schedule = row
        state = states.setdefault(row.pk, ScheduleState(schedule_id=row.pk))
        if not outcome.repeated:
            advance(state, outcome.run)
        if _decides(outcome.run):
            outcome.next_point = settle_state(row, state)
    save_states([states[pk] for pk in pks if pk in states and pk in current], STATE_FIELDS)


def save_states(states: Sequence[ScheduleState], fields: list[str]) -> None:
    """Insert states, or update these fields of those that are there, in one statement."""
    using = database()
    with_target = connections[using].features.supports_update_conflicts_with_target
    ScheduleState._base_manager.using(using).bulk_create(
        states, update_conflicts=True, unique_fields=["schedule"] if with_target else None, update_fields=fields
    )


def _lock_schedules(pks: list[int], outcomes: Sequence[Outcome], using: str) -> dict[int, Schedule]:
    """Lock these schedules and return them as they stand now; those that were not edited are not read again."""
    locking: dict[str, Any] = {"of": ("self",), "no_key": True} if connections[using].vendor == "postgresql" else {}
    rows = Schedule._base_manager.using(using).select_for_update(**locking).filter(pk__in=pks).order_by("pk")
    generations = dict(rows.values_list("pk", "generation"))
    current = {
        outcome.schedule.pk: outcome.schedule
        for outcome in outcomes
        if generations.get(outcome.schedule.pk) == outcome.schedule.generation
    }
    edited = generations.keys() - current.keys()
    return current | load_schedules(edited) if edited else current


def _decides(run: Run) -> bool:
    """Say whether a row decides points of its schedule's chain: an outcome, or the hand-over of an overlapping run."""
    if run.apart:
        return bool(run.origin == Origin.DUE and run.status == Status.QUEUED)
    return run.status not in OPEN


def advance(state: ScheduleState, run: Run) -> None:
    """Move a state on by one row of the ledger, in memory."""
    if _decides(run):
        last = run.last_due_at or run.due_at
        state.last_due_at = last if state.last_due_at is None else max(state.last_due_at, last)
        state.run_count += run.apart  # handed over; its end does not count again
    if run.status in OPEN:
        return
    state.last_status, state.last_outcome_at = run.status, run.finished_at
    state.last_lag_ms = None
    if run.status == Status.SKIPPED or run.started_at is None or run.claimed_at is None:
        return
    lag = run.claimed_at - run.due_at
    state.last_lag_ms = int(lag.total_seconds() * 1000)
    state.failing_streak = 0 if run.status == Status.SUCCEEDED else state.failing_streak + 1
    if run.origin != Origin.DUE:
        return
    state.run_count += not run.apart
    finished = run.finished_at or run.started_at
    unbroken = state.last_finished_at is not None and run.due_at <= state.last_finished_at
    if not unbroken or state.busy_from is None:
        state.busy_from = run.claimed_at
    state.last_finished_at = finished if state.last_finished_at is None else max(state.last_finished_at, finished)


def settle_state(schedule: Schedule, state: ScheduleState) -> datetime | None:
    """Write the chain's next point, or why there is none, into a state (in memory), and return the point."""
    try:
        point = chain.next_point(schedule, state)
    except InvalidRecurrence as error:
        state.next_due_at = None
        state.condition, state.condition_reason = Condition.PARKED, str(error)[:500]
        return None
    state.next_due_at = point
    if not schedule.enabled:
        state.next_due_at = None
        return None
    if point is None:
        state.condition, state.condition_reason = Condition.EXHAUSTED, chain.exhausted_reason(schedule, state)
    else:
        state.condition, state.condition_reason = Condition.ACTIVE, ""
    return point


def close_orphan(run: Run, reason: str) -> None:
    """Close an open run whose schedule is gone: nobody is left to execute it for."""
    rows = Run._base_manager.using(database()).filter(pk=run.pk, status__in=sorted(OPEN))
    rows.update(status=Status.LOST, reason=reason, finished_at=utcnow())


def find(run: Run) -> Run | None:
    """Return the row of a run's due point as it stands now."""
    rows = Run._base_manager.using(database())
    return rows.filter(schedule_id=run.schedule_id, origin=run.origin, due_at=run.due_at).first()


def undo_start(outcomes: Sequence[Outcome], before: Sequence[dict[str, Any]]) -> None:
    """Take `running` rows of executions that did not begin back to what they were, so that no reclaim is counted."""
    using = database()
    with transaction.atomic(using=using):
        for outcome, values in zip(outcomes, before, strict=True):
            run = outcome.run
            rows = Run._base_manager.using(using).filter(pk=run.pk, status=Status.RUNNING, fence=run.fence)
            rows.update(**values)


def close_abandoned(runs: Sequence[Run]) -> None:
    """Close open rows of chains that will not come back: their schedule is gone or switched off, Redis forgot them."""
    schedules = load_schedules({run.schedule_id for run in runs})
    for run in runs:
        schedule = schedules.get(run.schedule_id)
        if schedule is None:
            close_orphan(run, "the schedule was deleted")
            continue
        seen = version_of(run)
        run.status = Status.FAILED if run.status == Status.RETRYING else Status.LOST
        run.reason, run.finished_at = "paused", utcnow()
        record([Outcome(run, schedule, seen)])


def load_abandoned() -> list[Run]:
    """Return open rows of chains whose schedule is gone or switched off."""
    using = database()
    enabled = Schedule._base_manager.using(using).filter(pk=OuterRef("schedule_id"), enabled=True)
    rows = Run._base_manager.using(using).filter(apart=False, status__in=[Status.RUNNING, Status.RETRYING])
    return list(rows.filter(~Exists(enabled)).order_by("pk")[:1000])
