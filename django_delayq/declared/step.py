"""What one sync does to one schedule: planned from the rows there are, told in lines, written in one transaction."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Self

from django.db import IntegrityError
from django.db.models import Q

from .. import registry
from ..decorators import Declared
from ..fields import utcnow
from ..models import Declaration, Schedule
from .values import RECURRENCE, SWITCH, Values, differing, shown, values_for, values_of

#: Why a schedule is disabled that the code no longer declares.
GONE = "The code no longer declares this schedule."
#: Who is said to have replaced a definition.
BY = "delayq_sync"


class Overtaken(IntegrityError):
    """Another sync wrote between two reads of this one: begin the transaction anew."""


class Rows:
    """Schedules by primary key and by name, declarations by key and by schedule."""

    def __init__(self, declarations: Collection[Declaration], schedules: Collection[Schedule]) -> None:
        self.schedules = {each.pk: each for each in schedules}
        self.named = {each.name: each for each in schedules}
        known = [each for each in declarations if each.pk in self.schedules]  # else deleted between the two queries
        self.declarations = {each.key: each for each in known}
        self.of_schedule = {each.pk: each for each in known}

    def declared_as(self, key: str, keys: Collection[str]) -> Declaration | None:
        """Return what is declared by this key, or was: the key is by default the path of the task.

        `keys` are all that the code has.
        """
        names = [key, *(name for name in registry.former_names(key) if name not in keys)]
        return next((self.declarations[name] for name in names if name in self.declarations), None)

    @classmethod
    def read_all(cls, using: str, names: Collection[str]) -> Self:
        """Return every declared schedule, and those of these names."""
        declarations = Declaration._base_manager.using(using).all()
        wanted = Q(pk__in=[each.pk for each in declarations]) | Q(name__in=names)
        return cls(declarations, Schedule._base_manager.using(using).filter(wanted))

    @classmethod
    def lock(cls, using: str, key: str, names: Collection[str]) -> Self:
        """Return and lock the schedule of a key, and those of these names.

        Declarations are locked first: see `models/locks.py`, Note [Order of locks].

        Raises:
            Overtaken: There is a declaration now that was not there when declarations were locked.
        """
        declarations, keys = Declaration._base_manager.using(using).order_by("pk"), [key, *registry.former_names(key)]
        schedules = Schedule._base_manager.using(using).order_by("pk")
        named = list(schedules.filter(name__in=names).values_list("pk", flat=True))
        locked = declarations.select_for_update().filter(Q(key__in=keys) | Q(pk__in=named))
        wanted = Q(pk__in=[each.pk for each in locked]) | Q(name__in=names)
        rows = cls(locked, schedules.select_for_update().filter(wanted))
        again = declarations.filter(Q(key__in=keys) | Q(pk__in=list(rows.schedules)))
        if {(each.pk, each.key) for each in again} != {(each.pk, each.key) for each in locked}:
            raise Overtaken(f"The schedule declared as {key!r} is being written by another sync.")
        return rows


class NameTaken(Exception):
    """The name that the code gives is another schedule's. The message says whose, and what to do."""


@dataclass(slots=True)
class Step:
    """`changes` are fields to set on the schedule, and `declaration` is what to store; None: there is nothing to write.

    `lines` tell what is changed, `notes` what is not created.
    """

    schedule: Schedule | None = None
    declaration: Declaration | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def apply(self) -> None:
        """Set the changes on the schedule in memory, and see that it can be saved.

        Raises:
            ValidationError: Nobody could save it by hand either.
        """
        if self.schedule is None:
            return
        for name, value in self.changes.items():
            setattr(self.schedule, name, value)
        if self.changes.keys() - SWITCH.fields:
            self.schedule.full_clean(validate_unique=False)

    def write(self, using: str) -> None:
        """Save through the model, so that the mirror follows and a recurrence that stays the same is not begun anew.

        Raises:
            ValidationError: See `apply`.
            IntegrityError: Another sync or a person was faster.
        """
        if self.schedule is None or self.declaration is None:
            return
        self.apply()
        if self.schedule._state.adding:
            self.schedule.save(using=using)
        elif self.changes:
            self.schedule.changed_by = BY
            self.schedule.save(using=using, update_fields=list(self.changes))
        self.declaration.schedule = self.schedule
        self.declaration.save(using=using)


def plan(declared: Declared, wanted: Values, keys: Collection[str], rows: Rows) -> Step:
    """Return what is to be done so that the database has what the code declares. `keys` are all that the code has.

    Raises:
        NameTaken: Another schedule has the name.
    """
    declaration = rows.declared_as(declared.key, keys)
    lines = []
    if declaration is not None:
        schedule = rows.schedules[declaration.pk]
        if declaration.gone_at is not None:
            lines.append(f"{schedule.name}: declared again")
    elif wanted["name"] not in rows.named:
        return _plan_new(declared, wanted)
    else:
        schedule = rows.named[wanted["name"]]
        declaration = rows.of_schedule.get(schedule.pk)
        if registry.current_name(schedule.task) != declared.task or (
            declaration is not None and declaration.key in keys
        ):
            raise _taken(declared, schedule)
        was = "it was made by hand" if declaration is None else f"its key was {declaration.key!r}"
        lines.append(f"{schedule.name}: taken over by the code, {was}")
    other = rows.named.get(wanted["name"])
    if other is not None and other.pk != schedule.pk:
        raise _taken(declared, other)
    current = values_of(schedule)
    differs = [unit for unit in differing(current, wanted) if unit is not SWITCH]
    lines += [f"{schedule.name}: {unit.name} from {shown(unit, current)} to {shown(unit, wanted)}" for unit in differs]
    step = Step(schedule, changes=values_for(differs, wanted), lines=lines)
    if not schedule.enabled and schedule.pause_reason == GONE:
        step.changes |= {"enabled": True, "pause_reason": ""}
    if lines:
        step.declaration = Declaration(pk=schedule.pk, key=declared.key)
    return step


def plan_gone(key: str, rows: Rows) -> Step:
    """Return how to disable a schedule that the code no longer declares, if that is not done already.

    Should it come back, it is on again unless a person has touched the switch.
    """
    last = rows.declarations.get(key)
    if last is None or last.gone_at is not None:
        return Step()
    schedule = rows.schedules[last.pk]
    changes: dict[str, Any] = {"enabled": False, "pause_reason": GONE} if schedule.enabled else {}
    did = "disabled, the code no longer declares it" if changes else "the code no longer declares it; it is off already"
    gone = Declaration(pk=last.pk, key=key, gone_at=utcnow())
    return Step(schedule, gone, changes, [f"{schedule.name}: {did}"])


def _plan_new(declared: Declared, wanted: Values) -> Step:
    if wanted["at"] is not None and wanted["at"] <= utcnow():
        return Step(notes=[f"{wanted['name']}: not created, {shown(RECURRENCE, wanted)} has passed"])
    line = f"{wanted['name']}: created, {shown(RECURRENCE, wanted)}, {wanted['task']}"
    return Step(Schedule(), Declaration(key=declared.key), dict(wanted), [line])


def _taken(declared: Declared, other: Schedule) -> NameTaken:
    return NameTaken(
        f"The name {other.name!r}, which {declared.module} gives to a schedule of {declared.task}, is that of another "
        f"one, of {other.task}. Rename one of them: in the code by name='…', in the admin by hand."
    )
