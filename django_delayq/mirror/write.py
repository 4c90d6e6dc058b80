"""Writes definitions to Redis: re-read from the primary database, then upserted or removed under their generation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Case, Value, When

from .. import chain, ledger
from ..broker import Broker, Definition, Place
from ..models import Run, Schedule, ScheduleState, Tombstone
from ..signals import schedule_parked
from ..timing import to_ms

PAGE = 200


@dataclass(slots=True)
class Wanted:
    """What Redis should hold of a schedule: a point and its wake-up, or nothing."""

    schedule: Schedule
    state: ScheduleState
    point: datetime | None

    @property
    def member(self) -> str:
        """The schedule's member."""
        return chain.member_of(self.schedule.pk)

    def definition(self, expected: str = "") -> Definition:
        """Return the definition to upsert; `point` is not None."""
        assert self.point is not None  # noqa: S101 - for the type checker
        wake = chain.wake_of(self.schedule, self.point)
        return Definition(self.member, self.schedule.generation, to_ms(self.point), to_ms(wake), expected)


def sync(broker: Broker, pks: Iterable[int]) -> int:
    """Mirror these schedules as the database has them now; return how many. Deleted ones are left to their tombstones.

    Raises:
        BrokerError: Redis cannot be written; what was not reached stays marked as not mirrored.
    """
    todo, count = sorted(set(pks)), 0
    for at in range(0, len(todo), PAGE):
        wanted = read_wanted(todo[at : at + PAGE])
        write_wanted(broker, wanted)
        count += len(wanted)
    return count


def read_wanted(pks: Sequence[int], *, note: bool = True) -> list[Wanted]:
    """Read definitions and work out what Redis should hold of each; `note` the result in their states.

    Needs no Redis, so that a state tells what a definition left undecided even where Redis was never reached.
    """
    schedules = ledger.load_schedules(pks)
    open_rows = ledger.load_open_rows(pks)
    wanted, changed, parked = [], [], []
    for schedule in schedules.values():
        state = chain.state_of(schedule)
        before = (state.next_due_at, state.condition, state.condition_reason)
        if state._state.adding and schedule.synced_generation:  # its state was lost: what is undecided is not known
            state.next_due_at = schedule.created_at + timedelta(milliseconds=1)
        owed = _owed(schedule, state)
        kept = state.next_due_at
        point = ledger.settle_state(schedule, state)
        if owed:
            state.next_due_at = kept
        if state._state.adding or before != (state.next_due_at, state.condition, state.condition_reason):
            changed.append(state)
            if state.condition == "parked" != before[1]:
                parked.append((schedule, state.condition_reason))
        if schedule.enabled:
            point = _oldest(open_rows.get(schedule.pk), point)
        wanted.append(Wanted(schedule, state, point))
    if note:
        ledger.save_states(changed, ["next_due_at", "condition", "condition_reason"])
        for schedule, reason in parked:
            schedule_parked.send_robust(sender=Schedule, schedule=schedule, reason=reason)
    return wanted


def note_parked(pks: Sequence[int]) -> None:
    """Note in the states which of these schedules cannot go on, and why; see `ScheduleState.condition_reason`."""
    read_wanted(pks)


def _owed(schedule: Schedule, state: ScheduleState) -> bool:
    """Say whether a point of the definition before the last edit had come due by then and is undecided (rule R8)."""
    due = state.next_due_at
    return (
        due is not None
        and due <= schedule.effective_from
        and due > schedule.created_at
        and (state.last_due_at is None or due > state.last_due_at)
    )


def _oldest(rows: list[Run] | None, point: datetime | None) -> datetime | None:
    if not rows:
        return point
    oldest: datetime = rows[0].due_at
    return oldest if point is None else min(oldest, point)


def write_wanted(
    broker: Broker, wanted: Sequence[Wanted], *, sweep: bool = False, expected: dict[str, str] | None = None
) -> None:
    """Upsert or remove, one script per place and kind.

    A schedule that was moved enters its new place only after it has left the old one: while it is leased there, it is
    left out here and stays marked as not mirrored, and the next sweep tries again. Otherwise its point would be run in
    both places.
    """
    held = remove_tombstones(broker, [item.member for item in wanted])
    wanted = [item for item in wanted if item.member not in held]
    expected = expected or {}
    upserts: dict[Place, list[Definition]] = {}
    removals: dict[Place, list[tuple[str, int, str]]] = {}
    for item in wanted:
        member, schedule = item.member, item.schedule
        place = broker.place_of(member, schedule.queue)
        if item.point is None:
            removals.setdefault(place, []).append((member, schedule.generation, expected.get(member, "")))
        else:
            upserts.setdefault(place, []).append(item.definition(expected.get(member, "")))
    for place, definitions in upserts.items():
        broker.upsert(place, definitions, sweep=sweep)
    for place, members in removals.items():
        broker.remove(place, members)
    _note_synced([item.schedule for item in wanted])


def remove_tombstones(broker: Broker, members: Sequence[str] | None = None, *, limit: int = PAGE) -> set[str]:
    """Let Redis follow deletions and moves, of these members or the oldest; return those that are still leased."""
    rows = Tombstone._base_manager.using(ledger.database()).order_by("pk")
    stones = list(rows[:limit] if members is None else rows.filter(member__in=members))
    places: dict[Place, list[Tombstone]] = {}
    for stone in stones:
        places.setdefault(broker.place_of(stone.member, stone.queue), []).append(stone)
    held: set[str] = set()
    done: list[int] = []
    for place, group in places.items():
        replies = broker.remove(place, [(stone.member, stone.generation, "") for stone in group], gone=True)
        for stone, reply in zip(group, replies, strict=True):
            if reply == "LEASED":
                held.add(stone.member)
            else:
                done.append(stone.pk)
    rows.filter(pk__in=done).delete()
    return held


def _note_synced(schedules: Iterable[Schedule]) -> None:
    """Note which generation Redis has seen. A row that moved on meanwhile stays marked: its generation differs."""
    stale = [row for row in schedules if row.synced_generation != row.generation]
    if not stale:
        return
    seen = Case(*[When(pk=row.pk, then=Value(row.generation)) for row in stale])
    rows = Schedule._base_manager.using(ledger.database()).filter(pk__in=[row.pk for row in stale])
    rows.update(synced_generation=seen)
