"""Writes schedules that the code declares to the database. Redis follows as after any other save.

Note [Whose field]
The code owns every field except the switch (`enabled` and its reason) and the tags, which users own. The code sets the
switch only when it creates a schedule. A sync overwrites the other fields, and the admin makes them read-only.

Note [Who syncs]
Only `delayq_sync`, and `migrate` if SYNC_AFTER_MIGRATE is set: never a worker, a web process or an import. During a
deploy old and new code run side by side. If each wrote its declarations, schedules would change back and forth with
every start of a process, and every change of a recurrence restarts it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connections, transaction
from django.db.models import Q
from django.db.models.signals import post_migrate

from .. import conf, ledger
from ..calls import registry
from ..calls.decorators import Declared, made
from ..models import Declaration, Schedule
from ..models.differences import RECURRENCE, SWITCH, Values, declared_schedule, differing, shown, values_for, values_of
from ..models.locks import locked
from ..recurrence.point import utcnow


def connect() -> None:
    """Make `migrate` sync if SYNC_AFTER_MIGRATE is set."""
    app = apps.get_app_config("django_delayq")
    post_migrate.connect(_migrated, sender=app, dispatch_uid="django_delayq.migrated")


def _migrated(using: str, verbosity: int, stdout: Any = None, **kwargs: Any) -> None:
    if conf.get_config().sync_after_migrate and conf.mirrors():
        say = stdout.write if stdout is not None and verbosity else lambda line: None
        sync_after_migrate(using, say=say)


@dataclass(frozen=True, slots=True)
class Collected:
    """Declarations by name: `declared` to sync, `twice` sharing a key or name, `outside` not found by every process."""

    declared: Sequence[Declared]
    twice: Sequence[Declared]
    outside: Sequence[Declared]

    @property
    def keys(self) -> frozenset[str]:
        """All keys in the code. A schedule whose key is not among them is gone."""
        return frozenset(each.key for each in (*self.declared, *self.twice))


def collect() -> Collected:
    """Import the task modules and return their declarations.

    Processes import different modules, and a sync disables what is not declared. So a declaration counts only if its
    task is registered and it is in the task's module or in a task module.

    Raises:
        ImportError: A task module has an error, other than a missing foreign package; the message has the line.
    """
    for broken in registry.broken_modules():
        if not broken.package:
            raise ImportError(str(broken))
    tasks, modules = registry.get_tasks(), registry.find_modules()
    inside: list[Declared] = []
    outside: list[Declared] = []
    for each in sorted(made(), key=lambda one: (one.values["name"], one.key, one.module)):
        known = each.task in tasks and each.module in {each.func.__module__, *modules}
        (inside if known else outside).append(each)
    keys = Counter(each.key for each in inside)
    names = Counter(each.values["name"] for each in inside)
    twice = [each for each in inside if keys[each.key] > 1 or names[each.values["name"]] > 1]
    return Collected([each for each in inside if each not in twice], twice, outside)


#: Pause reason of a schedule that the code no longer declares.
GONE = "The code no longer declares this schedule."
#: `changed_by` of synced schedules.
BY = "delayq_sync"
#: Maximum attempts to write a schedule while other transactions write it too.
MOST_ATTEMPTS = 5
logger = logging.getLogger("django_delayq.sources")


@dataclass(slots=True)
class Report:
    """The result of a sync. `checked` counts declarations, `changed` the schedules changed (in a dry run: to change).

    `lines` has the changes and the schedules that are not created, `problems` one item for each schedule that could
    not be written.
    """

    checked: int = 0
    changed: int = 0
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.checked or self.lines)


class NameTaken(Exception):
    """Another schedule has the name that the code declares. The message names it and says what to do."""


class Rows(NamedTuple):
    """Schedules with their declarations, by key and by name."""

    by_key: dict[str, tuple[Schedule, Declaration]]
    by_name: dict[str, tuple[Schedule, Declaration | None]]

    @classmethod
    def read(cls, using: str, names: Collection[str], keys: Collection[str] | None = None) -> Self:
        """Return the schedules with these names and all declared ones; with `keys` only those, and lock the rows."""
        declarations, schedules = Declaration._base_manager.using(using), Schedule._base_manager.using(using)
        declared = declarations.all()
        if keys is not None:
            declared, schedules = declared.filter(key__in=keys), locked(schedules)
        rows = list(schedules.filter(Q(pk__in=[each.pk for each in declared]) | Q(name__in=names)))
        of = {each.pk: each for each in declarations.filter(schedule__in=rows)}
        by_key = {of[row.pk].key: (row, of[row.pk]) for row in rows if row.pk in of}
        return cls(by_key, {row.name: (row, of.get(row.pk)) for row in rows})


@dataclass(slots=True)
class Step:
    """What one sync does to one schedule: `changes` to set, and `lines` about them; none if nothing changes."""

    key: str
    lines: list[str] = field(default_factory=list)
    schedule: Schedule | None = None
    declaration: Declaration | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    gone: bool = False

    def write(self, using: str | None) -> None:
        """Save through the model, so that Redis follows and an unchanged recurrence is not restarted.

        Without a database this validates only.

        Raises:
            ValidationError: A field is invalid, as in the admin.
            IntegrityError: Another transaction wrote the schedule first.
        """
        schedule = self.schedule
        if schedule is None or not self.lines:
            return
        for name, value in self.changes.items():
            setattr(schedule, name, value)
        if self.changes.keys() - SWITCH.fields:
            schedule.full_clean(validate_unique=False)
        if using is None:
            return
        if self.changes:
            schedule.changed_by = BY
            schedule.save(using=using, update_fields=None if schedule._state.adding else list(self.changes))
        declaration = self.declaration or Declaration()
        declaration.schedule, declaration.key = schedule, self.key
        declaration.gone_at = utcnow() if self.gone else None
        declaration.save(using=using)


def sync(*, dry_run: bool = False) -> Report:
    """Write declared schedules to the database, and disable those no longer declared. Concurrent syncs are safe.

    Unchanged schedules are not written. Each schedule has its own transaction.

    Raises:
        ImportError: A task module cannot be imported. Nothing is written, because its schedules would seem gone.
        DatabaseError: The database does not answer or has no tables of ours. Earlier changes stay.
    """
    found, using = collect(), ledger.database()
    report = Report(checked=len(found.declared) + len(found.twice))
    report.problems += [
        f"{each.values['name']}: its key or name is declared twice, once in {each.module}" for each in found.twice
    ]
    rows = Rows.read(using, [each.values["name"] for each in found.declared])
    kept: set[int] = set()

    def do(key: str, names: list[str], plan: Callable[[Rows], Step]) -> None:
        step = plan(rows)
        if dry_run:
            step.write(None)
        elif step.schedule is not None and step.lines:
            step = _write(using, key, names, plan)
        report.lines += step.lines
        if step.schedule is not None:
            report.changed += bool(step.lines)
            kept.add(step.schedule.pk)

    for declared in found.declared:
        name = declared.values["name"]
        try:
            values = values_of(declared_schedule(declared))
            do(declared.key, [name], partial(_plan, declared, values, found.keys))
        except NameTaken as error:
            report.problems.append(str(error))
        except ValidationError as error:
            report.problems.append(f"{name}: {said(error)}")
    for key, (schedule, _) in sorted(rows.by_key.items()):
        # An app that is left out here for a missing package may declare the schedule in another process.
        if key not in found.keys and schedule.pk not in kept and registry.find_broken(schedule.task) is None:
            do(key, [], partial(_plan_gone, key))
    return report


def _write(using: str, key: str, names: list[str], plan: Callable[[Rows], Step]) -> Step:
    """Plan again with locked rows, and write: a concurrent sync may have written some of it already."""
    left = MOST_ATTEMPTS
    while True:
        left -= 1
        try:
            with transaction.atomic(using=using):
                step = plan(Rows.read(using, names, [key, *registry.former_names(key)]))
                step.write(using)
                return step
        except IntegrityError:
            if not left:
                raise


def _plan(declared: Declared, wanted: Values, keys: Collection[str], rows: Rows) -> Step:
    """Return the step that makes the database match a declaration. `keys` are all keys in the code.

    Raises:
        NameTaken: Another schedule has the name.
    """
    # The default key is the path of the task, which may have been renamed.
    known = [declared.key, *(key for key in registry.former_names(declared.key) if key not in keys)]
    found = next((rows.by_key[key] for key in known if key in rows.by_key), None)
    name, when, lines = wanted["name"], shown(RECURRENCE, wanted), []
    named = rows.by_name.get(name)
    standing = found or named
    if standing is None:
        if wanted["at"] is not None and wanted["at"] <= utcnow():
            return Step(declared.key, [f"{name}: not created, {when} has passed"])
        return Step(declared.key, [f"{name}: created, {when}, {declared.task}"], Schedule(), changes=dict(wanted))
    schedule, declaration = standing
    if found is None:
        same_task = registry.current_name(schedule.task) == declared.task
        taken = not same_task or (declaration is not None and declaration.key in keys)
        was = "it was made by hand" if declaration is None else f"its key was {declaration.key!r}"
        lines.append(f"{name}: taken over by the code, {was}")
    else:
        taken = named is not None and named[0].pk != schedule.pk
        if found[1].gone_at is not None:
            lines.append(f"{schedule.name}: declared again")
    if named is not None and taken:
        raise NameTaken(
            f"The name {name!r}, which {declared.module} gives to a schedule of {declared.task}, is that of another "
            f"one, of {named[0].task}. Rename one of them: in the code by name='…', in the admin by hand."
        )
    current = values_of(schedule)
    differs = [unit for unit in differing(current, wanted) if unit is not SWITCH]
    lines += [f"{schedule.name}: {unit.name} from {shown(unit, current)} to {shown(unit, wanted)}" for unit in differs]
    changes = values_for(differs, wanted)
    if not schedule.enabled and schedule.pause_reason == GONE:
        changes |= {"enabled": True, "pause_reason": ""}
    return Step(declared.key, lines, schedule, declaration, changes)


def _plan_gone(key: str, rows: Rows) -> Step:
    """Return the step that disables a schedule, if no sync has done so.

    A later declaration enables it again, unless a user has changed the switch.
    """
    schedule, declaration = rows.by_key.get(key, (None, None))
    if schedule is None or declaration is None or declaration.gone_at is not None:
        return Step(key)
    changes: dict[str, Any] = {"enabled": False, "pause_reason": GONE} if schedule.enabled else {}
    did = "disabled, the code no longer declares it" if changes else "the code no longer declares it; it is off already"
    return Step(key, [f"{schedule.name}: {did}"], schedule, declaration, changes, gone=True)


def sync_after_migrate(using: str, say: Callable[[str], Any]) -> None:
    """Sync after a migration of the schedules' database, if it has our tables. Never fails `migrate`: logs errors."""
    tables = connections[using].introspection.table_names()
    if using != ledger.database() or Declaration._meta.db_table not in tables:
        return
    try:
        report = sync()
    except Exception:  # importing a task module may raise anything
        logger.exception("The declared schedules were not synced. Correct it and run: manage.py delayq_sync")
        return
    for line in report.lines:
        say(line)
    for problem in report.problems:
        logger.error("A declared schedule was not synced: %s", problem)


def said(error: ValidationError) -> str:
    """Format a ValidationError in one line."""
    if not hasattr(error, "error_dict"):
        return " ".join(error.messages)
    return " ".join(f"{name}: {' '.join(messages)}" for name, messages in error.message_dict.items())
