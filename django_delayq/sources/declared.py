"""Writes schedules that the code declares to the database. Redis follows as after any other save.

Note [Code owns the fields, users own the switch]
The code owns every field except the switch (`enabled` and its reason) and the tags, which users own. The code sets the
switch only when it creates a schedule. A sync overwrites the other fields, and the admin makes them read-only.

Note [A start of a process syncs nothing]
Only `delayq_sync` syncs, and `migrate` if SYNC_AFTER_MIGRATE is set. During a deploy old and new code run side by side:
if each start of a process synced, schedules would change back and forth.
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
from ..calls.decorators import Declared, list_declared
from ..models import Schedule
from ..models.columns import Values, get_values
from ..models.differences import RECURRENCE, SWITCH, build_declared, format_unit, list_differing, select_values
from ..models.primary import lock_rows
from ..recurrence.point import utcnow


def connect() -> None:
    app = apps.get_app_config("django_delayq")
    post_migrate.connect(sync_after_migrate, sender=app, dispatch_uid="django_delayq.migrated")


@dataclass(frozen=True, slots=True)
class Collected:
    """Sorted by name: `declared` to sync, `twice` sharing a key or name, `outside` unknown to some processes."""

    declared: Sequence[Declared]
    twice: Sequence[Declared]
    outside: Sequence[Declared]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(each.key for each in (*self.declared, *self.twice))


def collect() -> Collected:
    """Import the task modules and return their declarations. Others do not count: a process that does not import them
    would disable their schedules. Raises ImportError if a module has an error other than a missing foreign package.
    """
    for broken in registry.list_broken_modules():
        if not broken.package:
            raise ImportError(str(broken))
    tasks, modules = registry.get_tasks(), registry.find_modules()
    inside: list[Declared] = []
    outside: list[Declared] = []
    for each in sorted(list_declared(), key=lambda one: (one.values["name"], one.key, one.module)):
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
    """The result of a sync: numbers of declarations and of schedules changed, and texts."""

    checked: int = 0
    changed: int = 0
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.checked or self.lines)


class Rows(NamedTuple):
    by_key: dict[str, Schedule]
    by_name: dict[str, Schedule]

    @classmethod
    def read(cls, using: str, names: Collection[str], keys: Collection[str] | None = None) -> Self:
        """Return the schedules with these names and all declared ones; with `keys` only those, and lock the rows."""
        schedules, declared = Schedule._base_manager.using(using), Q(declared_key__isnull=False)
        if keys is not None:
            schedules, declared = lock_rows(schedules), Q(declared_key__in=keys)
        rows = list(schedules.filter(declared | Q(name__in=names)))
        return cls({row.declared_key: row for row in rows if row.declared_key}, {row.name: row for row in rows})


@dataclass(slots=True)
class Step:
    """What one sync does to one schedule: `changes` to set, and `lines` about them; none if nothing changes."""

    key: str
    lines: list[str] = field(default_factory=list)
    schedule: Schedule | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    gone: bool = False

    def write(self, using: str | None) -> None:
        """Save through the model, so that Redis follows; without a database, only validate."""
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
        row = Schedule._base_manager.using(using).filter(pk=schedule.pk)
        row.update(declared_key=self.key, declaration_gone_at=utcnow() if self.gone else None)


def sync(*, dry_run: bool = False) -> Report:
    """Write declared schedules to the database, each in its own transaction, and disable those no longer declared.
    Concurrent syncs are safe. Raises DatabaseError, and ImportError, before any write, if a task module has an error.
    """
    found, using = collect(), ledger.get_database()
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
            values = get_values(build_declared(declared))
            do(declared.key, [name], partial(_plan, declared, values, found.keys))
        except ValidationError as error:
            report.problems.append(f"{name}: {format_errors(error)}")
    for key, schedule in sorted(rows.by_key.items()):
        # An app that is left out here for a missing package may declare the schedule in another process.
        if key not in found.keys and schedule.pk not in kept and registry.find_broken(schedule.task) is None:
            do(key, [], partial(_plan_gone, key))
    return report


def _write(using: str, key: str, names: list[str], plan: Callable[[Rows], Step], attempts: int = MOST_ATTEMPTS) -> Step:
    """Plan again with locked rows, and write: a concurrent sync may have written some of it already."""
    try:
        with transaction.atomic(using=using):
            step = plan(Rows.read(using, names, [key, *registry.list_former_names(key)]))
            step.write(using)
            return step
    except IntegrityError:
        if attempts == 1:
            raise
        return _write(using, key, names, plan, attempts - 1)


def _plan(declared: Declared, wanted: Values, keys: Collection[str], rows: Rows) -> Step:
    """Return the step that makes the database match a declaration. `keys` are all keys in the code."""
    # The default key is the path of the task, which may have been renamed.
    known = [declared.key, *(key for key in registry.list_former_names(declared.key) if key not in keys)]
    found = next((rows.by_key[key] for key in known if key in rows.by_key), None)
    name, when, lines = wanted["name"], format_unit(RECURRENCE, wanted), []
    named = rows.by_name.get(name)
    schedule = found or named
    if schedule is None:
        if wanted["at"] is not None and wanted["at"] <= utcnow():
            return Step(declared.key, [f"{name}: not created, {when} has passed"])
        return Step(declared.key, [f"{name}: created, {when}, {declared.task}"], Schedule(), changes=dict(wanted))
    if found is None:
        same_task = registry.resolve_path(schedule.task) == declared.task
        taken = not same_task or schedule.declared_key in keys
        was = "it was made by hand" if schedule.declared_key is None else f"its key was {schedule.declared_key!r}"
        lines.append(f"{name}: taken over by the code, {was}")
    else:
        taken = named is not None and named.pk != schedule.pk
        if schedule.declaration_gone_at is not None:
            lines.append(f"{schedule.name}: declared again")
    if named is not None and taken:
        raise ValidationError(
            f"A schedule of {named.task} already has the name {name!r}, which {declared.module} gives to one of "
            f"{declared.task}. Rename one of them: in the code by name='…', or in the admin."
        )
    current = get_values(schedule)
    differs = [unit for unit in list_differing(current, wanted) if unit is not SWITCH]
    lines += [
        f"{schedule.name}: {unit.name} from {format_unit(unit, current)} to {format_unit(unit, wanted)}"
        for unit in differs
    ]
    changes = select_values(differs, wanted)
    if not schedule.enabled and schedule.pause_reason == GONE:
        changes |= {"enabled": True, "pause_reason": ""}
    return Step(declared.key, lines, schedule, changes)


def _plan_gone(key: str, rows: Rows) -> Step:
    """Return the step that disables a schedule. A later declaration enables it, unless a user changed the switch."""
    schedule = rows.by_key.get(key)
    if schedule is None or not schedule.is_declared:
        return Step(key)
    changes: dict[str, Any] = {"enabled": False, "pause_reason": GONE} if schedule.enabled else {}
    did = "disabled, the code no longer declares it" if changes else "the code no longer declares it; it is off already"
    return Step(key, [f"{schedule.name}: {did}"], schedule, changes, gone=True)


def sync_after_migrate(using: str, verbosity: int = 1, stdout: Any = None, **kwargs: Any) -> None:
    """Sync after a migration of the schedules' database, if it has our tables. Never fails `migrate`: logs errors."""
    if not (conf.get_config().sync_after_migrate and conf.can_mirror()):
        return
    tables = connections[using].introspection.table_names()
    if using != ledger.get_database() or Schedule._meta.db_table not in tables:
        return
    try:
        report = sync()
    except Exception:  # importing a task module may raise anything
        logger.exception("The declared schedules were not synced. Correct the error and run: manage.py delayq_sync")
        return
    for line in report.lines if stdout is not None and verbosity else ():
        stdout.write(line)
    for problem in report.problems:
        logger.error("A declared schedule was not synced: %s", problem)


def format_errors(error: ValidationError) -> str:
    if not hasattr(error, "error_dict"):
        return " ".join(error.messages)
    return " ".join(f"{name}: {' '.join(messages)}" for name, messages in error.message_dict.items())
