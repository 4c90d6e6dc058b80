"""What one sync does to one schedule: planned from rows, told in lines, written in the transaction of its caller."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..decorators import Declared
from ..models import Declaration, Schedule
from .merge import merge, switched_off
from .rows import Rows
from .shown import shown
from .values import RECURRENCE, SWITCH, Unit, Values, from_json, to_json, values_of


class NameTaken(Exception):
    """The name that the code gives is another schedule's. The message says whose, and what to do."""


@dataclass(slots=True)
class Step:
    """`changes` are fields to set on the schedule, and `declaration` is what to store; None: there is nothing to write.

    `lines` tell what is changed, `notes` what is left as it is.
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
            self.schedule.save(using=using, update_fields=list(self.changes))
        self.declaration.schedule = self.schedule
        self.declaration.save(using=using)


def plan(declared: Declared, wanted: Values, rows: Rows, keys: Collection[str], now: datetime) -> Step:
    """Return what is to be done so that the database has what the code declares. `keys` are all that the code has.

    Raises:
        NameTaken: Another schedule has the name.
    """
    declaration = rows.declarations.get(declared.key)
    lines = []
    if declaration is not None:
        schedule = rows.schedules[declaration.pk]
        if declaration.gone_at is not None:
            lines.append(f"{schedule.name}: declared again")
    elif wanted["name"] not in rows.named:
        return _plan_new(declared, wanted, now)
    else:
        schedule = rows.named[wanted["name"]]
        declaration = rows.of_schedule.get(schedule.pk)
        if schedule.task != declared.task or (declaration is not None and declaration.key in keys):
            raise _taken(declared, schedule)
        was = "it was made by hand" if declaration is None else f"its key was {declaration.key!r}"
        lines.append(f"{schedule.name}: taken over by the code, {was}")
    step = _compare(schedule, wanted, wanted if declaration is None else from_json(declaration.values))
    step.lines = lines + step.lines
    other = rows.named.get(step.changes.get("name", ""))
    if other is not None and other.pk != schedule.pk:
        raise _taken(declared, other)
    if step.lines or declaration is None or declaration.values != to_json(wanted):
        step.declaration = Declaration(pk=schedule.pk, key=declared.key, values=to_json(wanted))
    return step


def plan_gone(schedule: Schedule, declaration: Declaration, now: datetime) -> Step:
    """Return how to disable a schedule that the code no longer declares."""
    changes = switched_off(values_of(schedule))
    did = "disabled, the code no longer declares it" if changes else "the code no longer declares it; it is off already"
    gone = Declaration(pk=declaration.pk, key=declaration.key, values={**declaration.values, **changes}, gone_at=now)
    return Step(schedule, gone, changes, [f"{schedule.name}: {did}"])


def _plan_new(declared: Declared, wanted: Values, now: datetime) -> Step:
    at: datetime | None = wanted["at"]
    if at is not None and at <= now:
        return Step(notes=[f"{wanted['name']}: not created, {shown(RECURRENCE, wanted)} has passed"])
    line = f"{wanted['name']}: created, {shown(RECURRENCE, wanted)}, {wanted['task']}"
    return Step(Schedule(), Declaration(key=declared.key, values=to_json(wanted)), dict(wanted), [line])


def _compare(schedule: Schedule, wanted: Values, last: Values) -> Step:
    current = values_of(schedule)
    merged = merge(last, current, wanted)

    def told(unit: Unit, before: str, between: str) -> str:
        return f"{schedule.name}: {unit.name} {before} {shown(unit, current)}{between} {shown(unit, wanted)}"

    return Step(
        schedule,
        changes=merged.changes(wanted),
        lines=[told(unit, "from", " to") for unit in merged.follow],
        notes=[told(unit, "stays", ", changed by hand; the code says") for unit in merged.stay],
    )


def _taken(declared: Declared, other: Schedule) -> NameTaken:
    return NameTaken(
        f"The name {other.name!r}, which {declared.module} gives to a schedule of {declared.task}, is that of another "
        f"one, of {other.task}. Rename one of them: in the code by name='…', in the admin by hand."
    )
