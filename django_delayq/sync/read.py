"""Computes what Redis should hold of schedules, and notes it in their states. Never connects to Redis.

Note [A digest shows an edit by SQL]
`ScheduleState.mirrored_digest` describes what was mirrored last: `effective_from`, a checksum of the timing fields,
and a checksum of the fields that decide where a schedule waits and when it wakes. Through Django, an edit of the timing
moves `effective_from`, and each edit sets a generation that is not mirrored yet. SQL does neither. So SQL has edited a
row in two cases: the first checksum differs, but `effective_from` does not; or the second checksum differs, but the
row counts as mirrored. SQL that also moves `effective_from` or the generation counts as an edit through Django.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from zlib import crc32

from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q

from .. import conf, ledger
from ..calls.side_channels import send
from ..index import EntryDefinition
from ..ledger import chain
from ..ledger.rows import ScheduleRow, StateRow
from ..models import Condition, Schedule, ScheduleState, Tombstone
from ..models.versions import TIMING_FIELDS, build_move, build_next_generation
from ..recurrence import compute_wake, to_ms
from ..signals import schedule_broken
from .pages import compress_keys

#: Raise it if other fields, or another format, would change the digest of an unchanged definition.
VERSION = "1"
_INSTANTS = ("at", "start_at", "end_at")
_read_instants = attrgetter("created_at", *_INSTANTS)
_read_others = attrgetter(*sorted(TIMING_FIELDS - {*_INSTANTS}))


def compute_digest(schedule: ScheduleRow) -> str:
    """Return the digest of a definition, which is the same in every process and database."""
    instants = [value and value.timestamp() for value in _read_instants(schedule)]
    timing = (*instants, *_read_others(schedule), schedule.name if "h" in schedule.cron.lower() else "")
    waiting = format_waiting(schedule.queue, schedule.jitter, schedule.name)
    return f"{VERSION}:{schedule.effective_from.timestamp()!r}:{crc32(repr(timing).encode()):08x}:{waiting}"


def format_waiting(queue: str, jitter: timedelta, name: str) -> str:
    """Return the last part of a digest: where a schedule waits and when it is woken."""
    waiting = (queue, jitter, name) if jitter else queue
    return f"{crc32(repr(waiting).encode()):08x}"


def find_edit_past_django(schedule: ScheduleRow, digest: str) -> tuple[bool, bool] | None:
    """Return whether SQL changed the timing, and the queue or jitter, since it was mirrored; None for neither."""
    old, new = schedule.state.mirrored_digest.split(":"), digest.split(":")
    if len(old) != len(new) or old[0] != new[0]:  # never mirrored, or with another VERSION
        return None
    retimed = old[1] == new[1] and old[2] != new[2]
    moved = old[3] != new[3] and (retimed or schedule.generation == schedule.synced_generation)
    return (retimed, moved) if retimed or moved else None


@dataclass(slots=True)
class Wanted:
    """What Redis should hold of a schedule: a point and its wake-up, or nothing if there is no `point`."""

    pk: int
    name: str
    queue: str
    definition: EntryDefinition
    point: datetime | None
    unnoted: bool = False  # the row does not record yet that this generation is mirrored
    awaited: bool = False  # the point has an open row in the ledger, so it may wait for a retry
    past_django: bool = False  # SQL edited the row since it was mirrored


def _build_wanted(
    pk: int, queue: str, name: str, jitter: timedelta, generation: int, priority: int, point: datetime | None
) -> Wanted:
    point_ms = wake_ms = 0
    if point is not None:
        point_ms = to_ms(point)
        wake_ms = to_ms(compute_wake(point, jitter, name)) if jitter else point_ms
    definition = EntryDefinition(chain.format_member(pk), generation, point_ms, wake_ms, priority=priority)
    return Wanted(pk, name, queue, definition, point)


#: The last column is True if a schedule is mirrored and active, and everything before its edit is decided. It is False
#: if the next point depends on the end of runs outside the chain: that point is not stored.
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
    """Return what is wanted of schedules whose stored next point is valid, and the queues of the others."""
    keys, mine = compress_keys(pks), set(pks)
    rows = ledger.reader(Schedule, "id", _SETTLED, ledger.get_database()).read(keys)
    begun = ledger.load_oldest_open(keys)
    settled: list[Wanted] = []
    others: dict[int, str] = {}
    for pk, queue, name, jitter, generation, priority, point, digest, sound in rows:
        if pk not in mine:
            continue
        if sound and pk not in begun and digest.endswith(format_waiting(queue, jitter, name)):
            settled.append(_build_wanted(pk, queue, name, jitter, generation, priority, point))
        else:
            others[pk] = queue
    return settled, others


def read_wanted(pks: Collection[int], *, note: bool = True) -> list[Wanted]:
    """Compute what Redis should hold of each schedule. With `note`, store the result in their states, and begin a new
    version of each definition that SQL edited. Locked rows are left to the next sweep. A `range` means all keys in it.
    """
    schedules = ledger.load_schedules(pks)
    digests = {pk: compute_digest(row) for pk, row in schedules.items()}
    edited = {pk: what for pk, row in schedules.items() if (what := find_edit_past_django(row, digests[pk]))}
    locked: set[int] = set()
    if edited and note:
        locked = _begin_versions(schedules, edited)
        fresh = ledger.load_schedules(edited)
        schedules |= fresh
        digests |= {pk: compute_digest(row) for pk, row in fresh.items()}
    oldest = ledger.load_oldest_open(pks)
    notes = _Notes()
    wanted = {pk: _work_out(row, digests[pk], oldest.get(pk), notes) for pk, row in schedules.items()}
    for pk in edited:
        wanted[pk].past_django = True
    for pk in notes.write(locked) if note else ():
        wanted[pk].unnoted = False
    return list(wanted.values())


def _work_out(schedule: ScheduleRow, digest: str, waiting: datetime | None, notes: "_Notes") -> Wanted:
    """Compute what is wanted of a schedule; `waiting` is the oldest point of its chain with an open row."""
    point, undecided = notes.take(schedule, digest)
    if waiting is None:
        if undecided is not None and schedule.state.condition != Condition.BROKEN:
            point = undecided  # its claimer decides it, and records what else the old definition left
    elif schedule.enabled:  # otherwise the worker that claims it closes it
        point = waiting if point is None else min(waiting, point)
    row = schedule
    wanted = _build_wanted(row.pk, row.queue, row.name, row.jitter, row.generation, row.priority, point)
    wanted.unnoted = row.synced_generation != row.generation
    wanted.awaited = point is not None and point == waiting
    return wanted


class _Notes:
    """Changes of the states of a page, written in at most two statements."""

    def __init__(self) -> None:
        self.changed: list[StateRow] = []
        self.mirrored: list[StateRow] = []  # only their digest changed
        self.broken: list[ScheduleRow] = []

    def take(self, schedule: ScheduleRow, digest: str) -> tuple[datetime | None, datetime | None]:
        """Update the state in memory; return the next point, and the undecided point before the last edit."""
        state = schedule.state
        before, seen = (state.next_due_at, state.condition, state.condition_reason), state.mirrored_digest
        if not state.stored and schedule.synced_generation:  # its state was lost: undecided points are unknown
            state.next_due_at = schedule.created_at + timedelta(milliseconds=1)
        undecided = chain.find_undecided(schedule, state)
        point = ledger.settle_state(schedule, state)
        if undecided is not None:
            state.next_due_at = undecided
        state.mirrored_digest = digest
        if not state.stored or before != (state.next_due_at, state.condition, state.condition_reason):
            self.changed.append(state)
            if state.condition == Condition.BROKEN != before[1]:
                self.broken.append(schedule)
        elif seen != digest:
            self.mirrored.append(state)
        return point, undecided

    def write(self, locked: set[int]) -> set[int]:
        """Write the states, send signals; return all locked keys. See Note [Schedules are locked first]."""
        pks = [state.schedule_id for state in (*self.changed, *self.mirrored) if state.schedule_id not in locked]
        if pks:
            using = ledger.get_database()
            with ledger.writing(using):
                for model in (Schedule, ScheduleState):
                    locked = locked | ledger.leave_locked(model, [pk for pk in pks if pk not in locked], using)
                fields = ("next_due_at", "condition", "condition_reason", "mirrored_digest")
                for states, names in ((self.changed, fields), (self.mirrored, fields[-1:])):
                    ledger.write_states([state for state in states if state.schedule_id not in locked], names)
        for row in self.broken:
            if row.pk not in locked:
                schedule, reason = ledger.build_schedule(row), row.state.condition_reason
                announce = partial(send, schedule_broken, "schedule_broken", sender=Schedule, schedule=schedule)
                announce = partial(announce, reason=reason)
                transaction.on_commit(announce, using=ledger.get_database(), robust=True)
        return locked


def _begin_versions(schedules: Mapping[int, ScheduleRow], edited: Mapping[int, tuple[bool, bool]]) -> set[int]:
    """Give rows that SQL edited a new version, as `Schedule.save` does; return the locked keys."""
    using = ledger.get_database()
    written = Schedule._base_manager.using(using)
    with ledger.writing(using):
        locked = ledger.leave_locked(Schedule, list(edited), using)
        free = {pk: what for pk, what in edited.items() if pk not in locked}
        for wanted, more in ((True, build_move()), (False, {})):
            pks = [pk for pk, (retimed, _) in free.items() if retimed is wanted]
            written.filter(pk__in=pks).update(generation=build_next_generation(), **more)
        # The former queue is unknown: remove them from every other queue before they enter the new shards.
        gone = [schedules[pk] for pk, (_, elsewhere) in free.items() if elsewhere]
        queues = conf.get_config().queues
        others = [(row.pk, queue, row.generation) for row in gone for queue in queues if queue != row.queue]
        Tombstone.add(others, using=using)
    return locked
