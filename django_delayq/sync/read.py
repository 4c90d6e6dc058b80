"""Works out what Redis should hold of schedules, and notes it in their states. Needs no Redis and writes none."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet

from .. import conf, ledger
from ..calls.side_channels import send
from ..index import Definition
from ..ledger import chain
from ..ledger.rows import ScheduleRow, StateRow
from ..models import Condition, Schedule, ScheduleState, Tombstone
from ..models.versions import moved, next_generation
from ..recurrence import to_ms, wake_at
from ..signals import schedule_parked
from .digest import PastDjango, digest_of, edited_past_django, sum_of_waiting


@dataclass(slots=True)
class Wanted:
    """What Redis should hold of a schedule: a point and its wake-up, or nothing where there is no `point`.

    `unnoted`: its row does not say yet that this generation is mirrored, and may be made to. `awaited`: the point has a
    row of the ledger that is not finished, so it may wait for a retry. `past_django`: SQL edited the row since it was
    mirrored; see Note [Digest].
    """

    pk: int
    name: str
    queue: str
    definition: Definition
    point: datetime | None
    unnoted: bool = False
    awaited: bool = False
    past_django: bool = False

    @property
    def member(self) -> str:
        """Its member in Redis."""
        return self.definition.member


def _definition(
    pk: int, name: str, jitter: timedelta, generation: int, point: datetime | None, priority: int
) -> Definition:
    point_ms = wake_ms = 0
    if point is not None:
        point_ms = wake_ms = to_ms(point)
        if jitter:
            wake_ms = to_ms(wake_at(point, jitter, name))
    return Definition(chain.member_of(pk), generation, point_ms, wake_ms, priority=priority)


#: What `read_settled` reads: the last says whether a schedule is mirrored and active, and whether all is decided of
#: before its edit. The end of a run apart from the chain moves the next point, and is not written there.
_SETTLED = (
    *("pk", "queue", "name", "jitter", "generation", "priority", "state__next_due_at", "state__mirrored_digest"),
    ExpressionWrapper(
        Q(enabled=True, synced_generation=F("generation"), state__condition=Condition.ACTIVE)
        & (Q(state__last_due_at=None) | Q(state__last_due_at__lt=F("state__next_due_at")))
        & Q(state__next_due_at__gt=F("effective_from"))
        & ~Q(every_from=Schedule.EveryFrom.FINISH, overlap=Schedule.Overlap.ALLOW),
        output_field=BooleanField(),
    ),
)


def read_settled(pks: Collection[int]) -> tuple[list[Wanted], dict[int, str]]:
    """Return what is wanted of those of these schedules that need no working out, and the queues of the others."""
    keys, mine = keys_of(pks), set(pks)
    rows = ledger.reader(Schedule, "id", _SETTLED, ledger.database()).read(keys)
    begun = ledger.load_oldest_open(keys)
    settled: list[Wanted] = []
    others: dict[int, str] = {}
    for pk, queue, name, jitter, generation, priority, point, digest, sound in rows:
        if pk not in mine:
            continue
        if sound and pk not in begun and digest.endswith(sum_of_waiting(queue, jitter, name)):
            settled.append(Wanted(pk, name, queue, _definition(pk, name, jitter, generation, point, priority), point))
        else:
            others[pk] = queue
    return settled, others


def queues_of(**where: Any) -> "QuerySet[Schedule, Any]":
    """Return (primary key, queue) of the schedules that this names."""
    return Schedule._base_manager.using(ledger.database()).filter(**where).values_list("pk", "queue", named=True)


def read_wanted(pks: Collection[int], *, note: bool = True) -> list[Wanted]:
    """Read definitions and work out what Redis should hold of each; `note` the result in their states.

    Needs no Redis, so that a state tells what a definition left undecided even where Redis was never reached. What was
    edited past Django becomes a new version here: it gets a generation, and an `effective_from` where its timing
    changed. What others have locked is left to the next sweep. `range(a, b)` stands for all keys between.
    """
    schedules = ledger.load_schedules(pks)
    digests = {pk: digest_of(row) for pk, row in schedules.items()}
    edited = {pk: what for pk, row in schedules.items() if (what := edited_past_django(row, digests[pk])) is not None}
    locked: set[int] = set()
    if edited and note:
        locked = _begin_versions(schedules, edited)
        fresh = ledger.load_schedules(edited)
        schedules |= fresh
        digests |= {pk: digest_of(row) for pk, row in fresh.items()}
    oldest = ledger.load_oldest_open(pks)
    notes = _Notes()
    wanted = {pk: _work_out(row, digests[pk], oldest.get(pk), notes) for pk, row in schedules.items()}
    for pk in edited:
        wanted[pk].past_django = True
    for pk in notes.write(locked) if note else ():
        wanted[pk].unnoted = False
    return list(wanted.values())


def note_parked(pks: Sequence[int]) -> None:
    """Note in the states which of these schedules cannot go on, and why; see `ScheduleState.condition_reason`."""
    read_wanted(pks)


def _work_out(schedule: ScheduleRow, digest: str, waiting: datetime | None, notes: "_Notes") -> Wanted:
    """Work out one of them; `waiting` is the oldest point that has a row of the ledger and no outcome."""
    point, undecided = notes.take(schedule, digest)
    if waiting is None:
        if undecided is not None and schedule.state.condition != Condition.PARKED:
            point = undecided  # its claimer runs or skips it, and explains what else the old definition left
    elif schedule.enabled:  # else it is closed by who finds it
        point = waiting if point is None else min(waiting, point)
    return Wanted(
        schedule.pk,
        schedule.name,
        schedule.queue,
        _definition(schedule.pk, schedule.name, schedule.jitter, schedule.generation, point, schedule.priority),
        point,
        unnoted=schedule.synced_generation != schedule.generation,
        awaited=point is not None and point == waiting,
    )


class _Notes:
    """What changed in the states of a page, to be written in at most two statements."""

    def __init__(self) -> None:
        self.changed: list[StateRow] = []
        self.mirrored: list[StateRow] = []  # nothing but their digest
        self.parked: list[ScheduleRow] = []

    def take(self, schedule: ScheduleRow, digest: str) -> tuple[datetime | None, datetime | None]:
        """Return the schedule's next point and one of before its last edit that is undecided, in memory."""
        state = schedule.state
        before, seen = (state.next_due_at, state.condition, state.condition_reason), state.mirrored_digest
        if not state.stored and schedule.synced_generation:  # its state was lost: what is undecided is not known
            state.next_due_at = schedule.created_at + timedelta(milliseconds=1)
        undecided = chain.left_undecided(schedule, state)
        point = ledger.settle_state(schedule, state)
        if undecided is not None:
            state.next_due_at = undecided
        state.mirrored_digest = digest
        if not state.stored or before != (state.next_due_at, state.condition, state.condition_reason):
            self.changed.append(state)
            if state.condition == Condition.PARKED != before[1]:
                self.parked.append(schedule)
        elif seen != digest:
            self.mirrored.append(state)
        return point, undecided

    def write(self, locked: set[int]) -> set[int]:
        """Write them but for those that others have `locked`, and tell of schedules that are parked since now.

        Return which are locked. See `models/locks.py`, Note [Order of locks].
        """
        pks = [state.schedule_id for state in (*self.changed, *self.mirrored) if state.schedule_id not in locked]
        if pks:
            using = ledger.database()
            with ledger.writing(using):
                for model in (Schedule, ScheduleState):
                    locked = locked | ledger.leave_locked(model, [pk for pk in pks if pk not in locked], using)
                fields = ("next_due_at", "condition", "condition_reason", "mirrored_digest")
                for states, names in ((self.changed, fields), (self.mirrored, fields[-1:])):
                    ledger.write_states([state for state in states if state.schedule_id not in locked], names)
        for row in self.parked:
            if row.pk not in locked:
                reason = row.state.condition_reason
                tell = partial(send, schedule_parked, "schedule_parked", sender=Schedule, reason=reason)
                tell = partial(tell, schedule=ledger.as_schedule(row))
                transaction.on_commit(tell, using=ledger.database(), robust=True)
        return locked


def _begin_versions(schedules: Mapping[int, ScheduleRow], edited: Mapping[int, PastDjango]) -> set[int]:
    """Make new versions of rows that SQL has edited, as `Schedule.save` would have done; return which are locked."""
    using = ledger.database()
    written = Schedule._base_manager.using(using)
    queues = conf.get_config().queues
    with ledger.writing(using):
        locked = ledger.leave_locked(Schedule, list(edited), using)
        free = {pk: what for pk, what in edited.items() if pk not in locked}
        for retimed, more in ((True, moved()), (False, {})):
            pks = [pk for pk, what in free.items() if what.retimed is retimed]
            written.filter(pk__in=pks).update(generation=next_generation(), **more)
        # Where they were before is not known: they leave the shards of every other queue before they enter new ones.
        gone = [schedules[pk] for pk, what in free.items() if what.moved]
        Tombstone.add(
            [(row.pk, queue, row.generation) for row in gone for queue in queues if queue != row.queue], using=using
        )
    return locked


def keys_of(pks: Collection[int]) -> list[int] | range:
    """Return the keys; as a range where that asks for few rows more, which the database answers faster."""
    first, last = min(pks, default=0), max(pks, default=-1)
    return range(first, last + 1) if last - first < 2 * len(pks) else list(pks)
