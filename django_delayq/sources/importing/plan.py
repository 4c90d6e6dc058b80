"""Plans and writes schedules from entries, each in its own transaction.

Note [Whose schedule]
The last line of an imported schedule's description has its origin and a fingerprint of everything else that was
written. If the fingerprint still matches, nobody has edited the schedule, and it follows its origin; otherwise it stays
unchanged. Users own the switch from the start; `enable` enables only schedules that an import has disabled.

Note [Equal names]
Several lines of a crontab may have the same command, and their sequence means nothing: lines are removed and swapped.
So an entry takes the most similar schedule: the same import, else the same call and time, else the same call, else the
first one left. An entry without a match gets the name with the next number. So lines keep their schedules, and a
schedule whose line was removed keeps its time.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import chain, count
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q

from ... import conf, ledger
from ...calls import registry
from ...calls.commands import COMMAND_TASK
from ...calls.validators import storable_json
from ...exceptions import InvalidArguments, InvalidRecurrence, UnknownTask
from ...models import Schedule
from ...models.differences import FIELDS, RECURRENCE, SWITCH, Values, differing, shown, to_json, values_for, values_of
from ...recurrence.point import utcnow
from ..declared import said
from .crons import clock_note
from .entry import Entry, Refused

#: Paths by which other schedulers call `manage.py COMMAND`.
CALL_COMMAND = ("django.core.management.call_command", "django.core.management:call_command")
_REFUSALS = (Refused, UnknownTask, InvalidArguments, InvalidRecurrence, ValidationError)
_MARK = re.compile(r"(?:^|\n+)Imported from [\w-]+ \((?P<print>[0-9a-f]{12})\)\.\s*\Z")


@dataclass(frozen=True)
class Choices:
    """Options of the command. `maps` are (pattern of the call, task): the first match wins."""

    origin: str
    maps: Sequence[tuple[str, str]] = ()
    only: Sequence[str] = ()
    prefix: str = ""
    overwrite: bool = False
    disabled: bool = False
    write: bool = False

    def wants(self, name: str) -> bool:
        """Return whether an entry of this name is chosen."""
        return not self.only or any(fnmatchcase(name, pattern) for pattern in self.only)


@dataclass(slots=True)
class Step:
    """The action for an entry: `create`, `update`, `same`, `keep` (edited by a user), `skip` or `refuse`.

    `values` are those of the schedule at its origin, without fields that are kept; None if there are none.
    """

    entry: Entry
    action: str
    name: str
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    schedule: Schedule | None = None
    values: Values | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def next_at(self) -> datetime | None:
        """The next due point after now; None if there is none."""
        if self.schedule is None or self.action == "refuse":
            return None
        try:
            return self.schedule.recurrence.next_after(utcnow())
        except InvalidRecurrence:
            return None


def _held_back(origin: str) -> str:
    """Return the pause reason of a schedule that only `disabled` of its import keeps off."""
    return f"Enable it when {origin} is off."


def enable(choices: Choices) -> list[str]:
    """Enable the schedules that imports of an origin have disabled, in one transaction; return their names.

    Schedules that were off at the origin, or that users have paused, stay off.
    """
    using, names = ledger.database(), []
    held_back = {"enabled": False, "pause_reason": _held_back(choices.origin), "name__startswith": choices.prefix}
    with transaction.atomic(using=using):
        for row in Schedule._base_manager.using(using).select_for_update().filter(**held_back).order_by("name"):
            if choices.wants(row.name.removeprefix(choices.prefix)):
                row.resume(by="delayq_import")
                names.append(row.name)
    return names


def take_over(entries: Iterable[Entry], choices: Choices) -> Iterator[Step]:
    """Yield a step for each entry, in sequence; with `choices.write` each is written in its own transaction."""
    registry.get_tasks()  # imports the modules that register periodic tasks of other schedulers
    using, seen = ledger.database(), set()
    planners = [
        _Planner(entry, choices.prefix + entry.name, choices, using) for entry in entries if choices.wants(entry.name)
    ]
    _number(planners, using)
    for planner in planners:
        entry, name = planner.entry, planner.name
        if name in seen:
            yield Step(entry, "refuse", name, f"There is another entry of the name {name!r}: rename one of them.")
            continue
        seen.add(name)
        yield planner.done()


def _number(planners: Sequence["_Planner"], using: str) -> None:
    """Give `numbered` entries unique names. See Note [Equal names]."""
    groups = defaultdict(list)
    for planner in planners:
        if planner.entry.numbered:
            groups[planner.name].append(planner)
    for base, group in groups.items():
        rows = _rows_of(base, using)
        waiting = {each: _likeness(each.wanted, _fingerprint(each.wanted)) for each in group if each.wanted}
        for degree in range(4):
            like = defaultdict(list)
            for name, keys in reversed(rows.items()):
                like[keys[degree]].append(name)
            for planner, keys in [*waiting.items()]:
                if same := like[keys[degree]]:
                    planner.name, planner.known = same.pop(), True
                    del rows[planner.name], waiting[planner]
        taken = {planner.name for planner in group if planner.known} | rows.keys()
        names = (name for name in chain([base], (f"{base} ({number})" for number in count(2))) if name not in taken)
        for planner in group:
            planner.name = planner.name if planner.known else next(names)


def _rows_of(base: str, using: str) -> dict[str, tuple[str, ...]]:
    """Return the likeness of each schedule with this name, or this name and a number; imported ones first."""
    rows = Schedule._base_manager.using(using).filter(Q(name=base) | Q(name__startswith=f"{base} ("))
    found = {}
    for row in sorted(rows, key=lambda row: (_MARK.search(row.description) is None, len(row.name), row.name)):
        if re.fullmatch(rf"{re.escape(base)}(?: \(\d+\))?", row.name):
            mark = _MARK.search(row.description)
            found[row.name] = _likeness(values_of(row), mark["print"] if mark else "")
    return found


def _likeness(values: Values, mark: str) -> tuple[str, ...]:
    """Return keys for comparing two schedules, the strictest first. See Note [Equal names]."""
    call = ("task", "args", "kwargs")
    degrees = ((*call, *RECURRENCE.fields, "timezone"), call, ())
    return mark, *(json.dumps(to_json({name: values[name] for name in names}), sort_keys=True) for names in degrees)


@dataclass(eq=False)
class _Planner:
    """One entry and its schedule. `wanted` is empty if `reason` says why there is none."""

    entry: Entry
    name: str
    choices: Choices
    using: str
    wanted: dict[str, Any] = field(init=False, default_factory=dict)
    reason: str = ""
    known: bool = False

    def __post_init__(self) -> None:
        self.reason = self.entry.skipped or self.entry.refused
        if not self.reason:
            try:
                self.wanted = self._wanted()
            except _REFUSALS as error:
                self.reason = _why(error)

    def done(self) -> Step:
        if self.reason:
            return Step(self.entry, "skip" if self.entry.skipped else "refuse", self.name, self.reason)
        wanted = {**self.wanted, "name": self.name}
        try:
            if not self.choices.write:
                return self._planned(wanted, lock=False)
            with transaction.atomic(using=self.using):
                step = self._planned(wanted, lock=True)
                if step.changes and step.schedule is not None:
                    columns = None if step.schedule._state.adding else list(step.changes)
                    step.schedule.changed_by = "delayq_import"
                    step.schedule.save(using=self.using, update_fields=columns)
                return step
        except _REFUSALS as error:
            return Step(self.entry, "refuse", self.name, _why(error))
        except IntegrityError:
            return Step(self.entry, "refuse", self.name, "Another transaction wrote it. Run this again.")

    def _call(self) -> tuple[str, list[Any], dict[str, Any]]:
        entry = self.entry
        args, kwargs = list(entry.args), dict(entry.kwargs)
        storable_json([args, kwargs])
        args, kwargs = json.loads(json.dumps([args, kwargs]))
        for pattern, task in self.choices.maps:
            if fnmatchcase(entry.command or entry.task, pattern):
                registry.get_task(task)
                return (task, [], {}) if entry.command else (task, args, kwargs)
        if entry.no_task:
            raise Refused(entry.no_task)
        path = COMMAND_TASK if entry.task in CALL_COMMAND else entry.task
        if registry.find_task(path) is None:
            raise Refused(_missing(path, args))
        return registry.current_name(path), args, kwargs

    def _wanted(self) -> dict[str, Any]:
        """Return the values of the schedule at its origin, without the name and the import's line."""
        task, args, kwargs = self._call()
        blank = values_of(Schedule())
        wanted = {**blank, **self.entry.values, "task": task, "args": args, "kwargs": kwargs}
        if wanted["queue"] not in conf.get_config().queues:
            wanted["queue"] = blank["queue"]
        if self.choices.disabled and wanted["enabled"]:
            wanted |= {"enabled": False, "pause_reason": _held_back(self.choices.origin)}
        return wanted

    def _planned(self, wanted: dict[str, Any], *, lock: bool) -> Step:
        rows = Schedule._base_manager.using(self.using)
        schedule = (rows.select_for_update() if lock else rows).filter(name=self.name).first()
        return self._created(wanted) if schedule is None else self._compared(schedule, wanted)

    def _created(self, wanted: dict[str, Any]) -> Step:
        if self.entry.phase is not None:
            start = wanted["start_at"]
            wanted["start_at"] = self.entry.phase if start is None else max(self.entry.phase, start)
        step = Step(self.entry, "create", self.name, notes=self._notes(wanted), schedule=Schedule(), values=wanted)
        self._set(step, wanted)
        return step

    def _compared(self, schedule: Schedule, wanted: dict[str, Any]) -> Step:
        current = _unmarked(schedule)
        if self.entry.phase is not None and not self.choices.overwrite:
            wanted["start_at"] = current["start_at"]
        differs = [unit for unit in differing(current, wanted) if unit is not SWITCH or self.choices.overwrite]
        step = Step(self.entry, "same", self.name, schedule=schedule, values=wanted, notes=self._notes(wanted))
        if not differs:
            return step
        told = ", ".join(f"{unit.name} {shown(unit, current)} → {shown(unit, wanted)}" for unit in differs)
        mark = _MARK.search(schedule.description)
        if not self.choices.overwrite and (mark is None or mark["print"] != _fingerprint(current)):
            if mark is None:
                raise Refused(
                    f"A schedule {self.name!r} is there that was not imported ({told}). Rename one of them, give "
                    "--prefix, or --overwrite."
                )
            step.action, step.reason = "keep", f"edited here since; --overwrite takes {told}"
            return step
        step.action, step.reason = "update", told
        self._set(step, values_for(differs, wanted))
        return step

    def _set(self, step: Step, values: Mapping[str, Any]) -> None:
        """Set values and the import's line on the schedule in memory, and validate it."""
        assert step.schedule is not None  # noqa: S101 - for mypy
        step.changes = dict(values)
        for name, value in values.items():
            setattr(step.schedule, name, value)
        text = _unmarked(step.schedule)
        mark = f"Imported from {self.choices.origin} ({_fingerprint(text)})."
        step.schedule.description = f"{text['description']}\n\n{mark}".strip()
        step.changes["description"] = step.schedule.description
        step.schedule.full_clean(validate_unique=False)

    def _notes(self, wanted: Values) -> list[str]:
        """Return differences in meaning, from the entry and from this project's settings."""
        notes = list(self.entry.notes)
        queue = self.entry.values.get("queue", wanted["queue"])
        if queue != wanted["queue"]:
            notes.append(f"queue {queue!r} is none of DELAYQ['QUEUES']: {wanted['queue']!r} takes its place")
        if wanted["kind"] == "cron":
            notes += clock_note(wanted["cron"], wanted["timezone"], utcnow())
        return notes


def _why(error: Exception) -> str:
    return said(error) if isinstance(error, ValidationError) else str(error)


def _missing(path: str, args: Sequence[Any]) -> str:
    if path == COMMAND_TASK:
        return (
            f"It runs the management command {''.join(map(repr, args[:1]))}, and DELAYQ['COMMANDS'] names none. Add it "
            "there, if whoever edits schedules may run it with any arguments."
        )
    module, _, function = path.rpartition(".")
    return (
        f"No installed app has a @task function {path!r}. Put @task above {function or path} in "
        f"{module or 'a tasks module'}, a module that DELAYQ['TASK_MODULES'] names in an installed app, or say which "
        f"task it is: --map '{path}=app.tasks.name'."
    )


def without_mark(description: str) -> str:
    """Return a description without the import's line."""
    return _MARK.sub("", description)


def _unmarked(schedule: Schedule) -> dict[str, Any]:
    return {**values_of(schedule), "description": without_mark(schedule.description)}


def _fingerprint(values: Values) -> str:
    """Return a short hash of all fields except name and switch. Defaults are left out: new fields do not change it."""
    told = {
        name: value
        for name, value in to_json(values).items()
        if name not in ("name", *SWITCH.fields)
        and (callable(FIELDS[name].default) or values[name] != FIELDS[name].get_default())
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
