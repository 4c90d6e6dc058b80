"""Plans and writes schedules from entries, each in its own transaction.

Note [An edited schedule does not follow its origin]
An imported schedule's description ends with its origin and a fingerprint of everything else that was written. If the
fingerprint still matches, no user has edited the schedule, and it follows its origin; otherwise it stays unchanged.
Users own the switch from the start; `enable` enables only schedules that an import has disabled.

Note [Equal entries keep their schedules]
Several lines of a crontab may have the same command, and may be removed and swapped. So an entry takes the schedule of
the same import, else one with the same call and time, else the first one left, else the name with the next number. So
lines keep their schedules, and a schedule whose line was removed keeps its time.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from ...calls.validators import encode_json
from ...exceptions import InvalidArguments, InvalidRecurrence, UnknownTask
from ...models import Schedule
from ...models.columns import Values, get_values, to_json
from ...models.differences import FIELDS, RECURRENCE, SWITCH, format_unit, list_differing, select_values
from ...recurrence.point import utcnow
from ..declared import format_errors
from .entry import ImportedEntry, Refused

#: Paths by which other schedulers call `manage.py COMMAND`.
CALL_COMMAND = ("django.core.management.call_command", "django.core.management:call_command")
_REFUSALS = (Refused, UnknownTask, InvalidArguments, InvalidRecurrence, ValidationError, IntegrityError)
_MARK = re.compile(r"(?:^|\n+)Imported from [\w-]+ \((?P<print>[0-9a-f]{12})\)\.\s*\Z")
_BY = "delayq_import"


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

    @property
    def pause_reason(self) -> str:
        return f"Enable it when {self.origin} is off."

    def is_wanted(self, name: str) -> bool:
        return not self.only or any(fnmatchcase(name, pattern) for pattern in self.only)


@dataclass(slots=True, eq=False)
class ImportStep:
    """The action for an entry, planned or done."""

    entry: ImportedEntry
    name: str
    action: str = ""  # create, update, same, keep (edited by a user), skip or refuse
    reason: str = ""
    schedule: Schedule | None = None
    values: dict[str, Any] | None = None  # those of the schedule at its origin; None if there are none

    @property
    def next_at(self) -> datetime | None:
        with suppress(InvalidRecurrence):
            return self.schedule.recurrence.next_after(utcnow()) if self.values and self.schedule else None
        return None

    def refuse(self, error: Exception | str) -> None:
        if isinstance(error, IntegrityError):
            error = "Another transaction wrote it. Run this again."
        self.reason = format_errors(error) if isinstance(error, ValidationError) else str(error)
        self.action, self.values = "refuse", None


def enable(choices: Choices) -> list[str]:
    """Enable what imports of an origin have disabled, in one transaction; return the names. Paused ones stay off."""
    using, names = ledger.get_database(), []
    disabled = {"enabled": False, "pause_reason": choices.pause_reason, "name__startswith": choices.prefix}
    with transaction.atomic(using=using):
        for row in Schedule._base_manager.using(using).select_for_update().filter(**disabled).order_by("name"):
            if choices.is_wanted(row.name.removeprefix(choices.prefix)):
                row.resume(by=_BY)
                names.append(row.name)
    return names


def take_over(entries: Iterable[ImportedEntry], choices: Choices) -> list[ImportStep]:
    """Return a step for each entry, in sequence; with `choices.write` each is written in its own transaction."""
    registry.get_tasks()  # imports the modules that register periodic tasks of other schedulers
    using, seen = ledger.get_database(), set()
    steps = [_prepare(entry, choices) for entry in entries if choices.is_wanted(entry.name)]
    _number(steps, using)
    for step in steps:
        if step.name in seen:
            step.refuse(f"There is another entry of the name {step.name!r}: rename one of them.")
        elif step.values is not None:
            _carry_out(step, step.values, choices, using)
        seen.add(step.name)
    return steps


def _prepare(entry: ImportedEntry, choices: Choices) -> ImportStep:
    step = ImportStep(entry, choices.prefix + entry.name)
    if entry.skipped:
        step.action, step.reason = "skip", entry.skipped
    elif entry.refused:
        step.refuse(entry.refused)
    else:
        try:
            step.values = _read_values(entry, choices)
        except _REFUSALS as error:
            step.refuse(error)
    return step


def _read_values(entry: ImportedEntry, choices: Choices) -> dict[str, Any]:
    """Return the values of the schedule at its origin, without the name and the import's line."""
    task, args, kwargs = _read_call(entry, choices)
    blank = get_values(Schedule())
    values = {**blank, **entry.values, "task": task, "args": args, "kwargs": kwargs}
    if values["queue"] not in conf.get_config().queues:
        entry.notes.append(f"queue {values['queue']!r} is not in DELAYQ['QUEUES']: {blank['queue']!r} takes its place")
        values["queue"] = blank["queue"]
    if choices.disabled and values["enabled"]:
        values |= {"enabled": False, "pause_reason": choices.pause_reason}
    return values


def _read_call(entry: ImportedEntry, choices: Choices) -> tuple[str, list[Any], dict[str, Any]]:
    if not isinstance(entry.args, list | tuple) or not isinstance(entry.kwargs, Mapping):
        raise Refused("Its args must be a list, and its kwargs an object.")
    encode_json([list(entry.args), dict(entry.kwargs)])
    args, kwargs = json.loads(json.dumps([entry.args, entry.kwargs]))
    for pattern, task in choices.maps:
        if fnmatchcase(entry.command or entry.task, pattern):
            registry.get_task(task)
            return (task, [], {}) if entry.command else (task, args, kwargs)
    if entry.no_task:
        raise Refused(entry.no_task)
    path = COMMAND_TASK if entry.task in CALL_COMMAND else entry.task
    if registry.find_task(path) is not None:
        return registry.resolve_path(path), args, kwargs
    if path == COMMAND_TASK:
        raise Refused(
            f"It runs the management command {''.join(map(repr, args[:1]))}, which DELAYQ['COMMANDS'] does not name. "
            "Add it there, if users who edit schedules may run it with any arguments."
        )
    module, _, function = path.rpartition(".")
    raise Refused(
        f"No installed app has a @task function {path!r}. Put @task above {function or path} in "
        f"{module or 'a tasks module'}, a module that DELAYQ['TASK_MODULES'] names in an installed app, or say which "
        f"task it is: --map '{path}=app.tasks.name'."
    )


def _number(steps: Sequence[ImportStep], using: str) -> None:
    """Give `numbered` entries unique names. See Note [Equal entries keep their schedules]."""
    groups = defaultdict(list)
    for step in steps:
        if step.entry.numbered:
            groups[step.name].append(step)
    for base, group in groups.items():
        rows = _find_numbered(base, using)
        taken, waiting = set(rows), {step: _compute_likeness(step.values, "") for step in group if step.values}
        for degree in range(3):
            for step, keys in [*waiting.items()]:
                name = next((name for name, others in rows.items() if others[degree] == keys[degree]), None)
                if name is not None:
                    step.name = name
                    del rows[name], waiting[step]
        names = (name for name in chain([base], (f"{base} ({number})" for number in count(2))) if name not in taken)
        for step in group:
            if step.values is None or step in waiting:
                step.name = next(names)


def _find_numbered(base: str, using: str) -> dict[str, tuple[str, ...]]:
    """Return the likeness of each schedule with this name, or this name and a number; imported ones first."""
    rows = Schedule._base_manager.using(using).filter(Q(name=base) | Q(name__startswith=f"{base} ("))
    found = {}
    for row in sorted(rows, key=lambda row: (_MARK.search(row.description) is None, len(row.name), row.name)):
        if re.fullmatch(rf"{re.escape(base)}(?: \(\d+\))?", row.name):
            mark = _MARK.search(row.description)
            found[row.name] = _compute_likeness(get_values(row), mark["print"] if mark else "made here")
    return found


def _compute_likeness(values: Values, mark: str) -> tuple[str, ...]:
    """Return keys for comparing two schedules, the strictest first. See Note [Equal entries keep their schedules]."""
    names = ("task", "args", "kwargs", "timezone", *RECURRENCE.fields)
    call = json.dumps(to_json({name: values[name] for name in names}), sort_keys=True)
    return mark or _compute_fingerprint(values), call, ""


def _carry_out(step: ImportStep, wanted: dict[str, Any], choices: Choices, using: str) -> None:
    wanted["name"] = step.name
    try:
        with transaction.atomic(using=using):
            rows = Schedule._base_manager.using(using).select_for_update()
            step.schedule = rows.filter(name=step.name).first()
            changes = _plan_changes(step, wanted, choices)
            if not changes:
                return
            schedule = step.schedule = step.schedule or Schedule()
            for name, value in changes.items():
                setattr(schedule, name, value)
            values = get_unmarked_values(schedule)
            mark = f"Imported from {choices.origin} ({_compute_fingerprint(values)})."
            schedule.description = f"{values['description']}\n\n{mark}".strip()
            schedule.full_clean(validate_unique=False)
            if choices.write:
                schedule.changed_by = _BY
                adding = schedule._state.adding
                schedule.save(using=using, update_fields=None if adding else [*changes, "description"])
    except _REFUSALS as error:
        step.refuse(error)


def _plan_changes(step: ImportStep, wanted: dict[str, Any], choices: Choices) -> dict[str, Any]:
    """Choose the action, and return the values to set."""
    schedule, phase = step.schedule, step.entry.phase
    if schedule is None:
        step.action = "create"
        if phase is not None:
            wanted["start_at"] = max(phase, wanted["start_at"] or phase)
        return wanted
    current = get_unmarked_values(schedule)
    if phase is not None and not choices.overwrite:
        wanted["start_at"] = current["start_at"]
    differs = [unit for unit in list_differing(current, wanted) if unit is not SWITCH or choices.overwrite]
    if not differs:
        step.action = "same"
        return {}
    step.action = "update"
    step.reason = ", ".join(
        f"{unit.name} {format_unit(unit, current)} → {format_unit(unit, wanted)}" for unit in differs
    )
    mark = _MARK.search(schedule.description)
    if choices.overwrite or (mark is not None and mark["print"] == _compute_fingerprint(current)):
        return select_values(differs, wanted)
    if mark is None:
        raise Refused(
            f"A schedule {step.name!r} is there that was not imported ({step.reason}). Rename one of them, give "
            "--prefix, or --overwrite."
        )
    step.action, step.reason = "keep", f"edited here since; --overwrite takes {step.reason}"
    return {}


def get_unmarked_values(schedule: Schedule) -> dict[str, Any]:
    """Return the values of a schedule, without the import's line in its description."""
    return {**get_values(schedule), "description": _MARK.sub("", schedule.description)}


def _compute_fingerprint(values: Values) -> str:
    """Return a short hash of all fields except name and switch. Defaults are left out: new fields do not change it."""
    stored = {
        name: value
        for name, value in to_json(values).items()
        if name not in ("name", *SWITCH.fields)
        and (callable(FIELDS[name].default) or values[name] != FIELDS[name].get_default())
    }
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()[:12]
