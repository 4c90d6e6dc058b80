"""Works out what Redis should hold of schedules, and notes it in their states. Needs no Redis and writes none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from .. import chain, conf, ledger
from ..broker import Definition
from ..models import Condition, Schedule, ScheduleState, Tombstone
from ..models.versions import moved, next_generation
from ..rows import ScheduleRow, StateRow
from ..signals import schedule_parked
from ..timing import to_ms
from . import rows
from .digest import PastDjango, digest_of, edited_past_django


@dataclass(slots=True)
class Wanted:
    """What Redis should hold of a schedule: a point and its wake-up, or nothing.

    `awaited`: the point has a row of the ledger that is not finished, so it may wait for a retry. `past_django`: SQL
    edited the row since it was mirrored; see Note [Digest]. `noted`: its state is as this says; else somebody else has
    locked it, and it must not be called mirrored.
    """

    schedule: ScheduleRow
    member: str
    point: datetime | None
    point_ms: int
    wake_ms: int
    awaited: bool
    past_django: bool
    noted: bool = True

    def definition(self, expected: str = "") -> Definition:
        """Return the definition to upsert, where there is a point."""
        return Definition(self.member, self.schedule.generation, self.point_ms, self.wake_ms, expected)


def read_wanted(pks: Sequence[int], *, note: bool = True) -> list[Wanted]:
    """Read definitions and work out what Redis should hold of each; `note` the result in their states.

    Needs no Redis, so that a state tells what a definition left undecided even where Redis was never reached. What was
    edited past Django becomes a new version here: it gets a generation, and an `effective_from` where its timing
    changed. What others have locked is left to the next sweep. `range(a, b)` stands for all keys between.
    """
    schedules = list(ledger.load_schedules(pks).values())
    marks = {schedule.pk: digest_of(schedule) for schedule in schedules}
    edited = _edited(schedules, marks)
    left: set[int] = set()
    if edited and note:
        left = _begin_versions(schedules, edited)
        fresh = ledger.load_schedules(edited)
        schedules = [fresh.get(row.pk, row) for row in schedules]
        marks |= {pk: digest_of(row) for pk, row in fresh.items()}
    oldest = rows.load_oldest_open(pks)
    notes = _Notes()
    wanted = [_work_out(row, marks[row.pk], oldest.get(row.pk), row.pk in edited, notes) for row in schedules]
    if note:
        noted = {item.schedule.pk: item for item in wanted}
        for pk in notes.write(left):
            noted[pk].noted = False
    return wanted


def _work_out(schedule: ScheduleRow, mark: str, waiting: datetime | None, past_django: bool, notes: "_Notes") -> Wanted:
    """Work out one of them; `waiting` is the oldest point that has a row of the ledger and no outcome."""
    point, owed = notes.take(schedule, mark)
    if waiting is None:
        if owed and schedule.state.condition != Condition.PARKED:
            point = (
                schedule.state.next_due_at
            )  # its claimer runs or skips it, and explains what else the old definition left
    elif schedule.enabled:  # else it is closed by who finds it
        point = waiting if point is None else min(waiting, point)
    point_ms = wake_ms = 0
    if point is not None:
        point_ms = wake_ms = to_ms(point)
        if schedule.jitter:
            wake_ms = to_ms(chain.wake_of(schedule, point))
    awaited = point is not None and point == waiting
    return Wanted(schedule, chain.member_of(schedule.pk), point, point_ms, wake_ms, awaited, past_django)


def note_parked(pks: Sequence[int]) -> None:
    """Note in the states which of these schedules cannot go on, and why; see `ScheduleState.condition_reason`."""
    read_wanted(pks)


class _Notes:
    """What changed in the states of a page, to be written in at most two statements."""

    def __init__(self) -> None:
        self.changed: list[StateRow] = []
        self.mirrored: list[StateRow] = []  # nothing but their digest
        self.parked: list[tuple[ScheduleRow, str]] = []

    def take(self, schedule: ScheduleRow, mark: str) -> tuple[datetime | None, bool]:
        """Return the schedule's next point and whether another one is owed, in memory."""
        state = schedule.state
        adding, seen = not state.stored, state.mirrored_digest
        before = state.next_due_at, state.condition, state.condition_reason
        if adding and schedule.synced_generation:  # its state was lost: what is undecided is not known
            state.next_due_at = schedule.created_at + timedelta(milliseconds=1)
        owed = _owed(schedule, state)
        kept = state.next_due_at
        point = ledger.settle_state(schedule, state)
        if owed:
            state.next_due_at = kept
        state.mirrored_digest = mark
        if adding or before != (state.next_due_at, state.condition, state.condition_reason):
            self.changed.append(state)
            if state.condition == Condition.PARKED != before[1]:
                self.parked.append((schedule, state.condition_reason))
        elif seen != mark:
            self.mirrored.append(state)
        return point, owed

    def write(self, left: set[int]) -> set[int]:
        """Write them but for those `left` out, and tell of schedules that are parked since now.

        Return which were left out: others have locked them. See `models/locks.py`, Note [Order of locks].
        """
        pks = [state.schedule_id for state in (*self.changed, *self.mirrored) if state.schedule_id not in left]
        if pks:
            using = ledger.database()
            with ledger.writing(using):
                left = left | ledger.leave_locked(Schedule, pks, using)
                left |= ledger.leave_locked(ScheduleState, [pk for pk in pks if pk not in left], using)
                self._write(self.changed, ("next_due_at", "condition", "condition_reason", "mirrored_digest"), left)
                self._write(self.mirrored, ("mirrored_digest",), left)
        for schedule, reason in self.parked:
            if schedule.pk not in left:
                instance = ledger.as_schedule(schedule)
                schedule_parked.send_robust(sender=Schedule, schedule=instance, reason=reason)
        return left

    @staticmethod
    def _write(states: Sequence[StateRow], fields: Sequence[str], left: set[int]) -> None:
        ledger.write_states([state for state in states if state.schedule_id not in left], fields)


def _owed(schedule: ScheduleRow, state: StateRow) -> bool:
    """Say whether a point of the definition before the last edit had come due by then and is undecided (rule R8)."""
    due = state.next_due_at
    return (
        due is not None
        and due <= schedule.effective_from
        and due > schedule.created_at
        and (state.last_due_at is None or due > state.last_due_at)
    )


def _edited(schedules: Sequence[ScheduleRow], marks: dict[int, str]) -> dict[int, PastDjango]:
    """Return which of these rows SQL has edited since they were mirrored, and what of them."""
    found = {}
    for row in schedules:
        seen, mark = row.state.mirrored_digest, marks[row.pk]
        if seen != mark and (edited := edited_past_django(row, seen, mark)) is not None:
            found[row.pk] = edited
    return found


def _begin_versions(schedules: Sequence[ScheduleRow], edited: dict[int, PastDjango]) -> set[int]:
    """Make new versions of rows that SQL has edited, as `Schedule.save` would have done; return which are locked."""
    using = ledger.database()
    written = Schedule._base_manager.using(using)
    queues = conf.get_config().queues
    with ledger.writing(using):
        left = ledger.leave_locked(Schedule, list(edited), using)
        free = {pk: what for pk, what in edited.items() if pk not in left}
        gone = [row for row in schedules if row.pk in free and free[row.pk].moved]
        retimed = [pk for pk, what in free.items() if what.retimed]
        written.filter(pk__in=retimed).update(**moved())
        written.filter(pk__in=list(free)).update(generation=next_generation())
        # Where they were before is not known: they leave every other place before they enter the new one.
        Tombstone.bury(
            [(row.pk, queue, row.generation) for row in gone for queue in queues if queue != row.queue], using=using
        )
    return left
