"""One sync: compares what the code declares with the database and writes what differs. See Note [Who syncs]."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connections, transaction

from .. import ledger, registry
from ..models import Declaration
from .collect import collect
from .step import NameTaken, Rows, Step, plan, plan_gone
from .values import declared_schedule, values_of

#: Each attempt but the last one ends because somebody else has written the same schedule.
MOST_ATTEMPTS = 5
logger = logging.getLogger("django_delayq.declared")


@dataclass(slots=True)
class Report:
    """`checked` counts what the code declares, `changed` the schedules that were changed, or would be in a dry run:
    `lines` tell how. `notes` tell what is not created, `problems` what could not be written, each of
    them about one schedule: the others are written.
    """

    checked: int = 0
    changed: int = 0
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.checked or self.lines)

    def add(self, step: Step) -> None:
        """Count and tell a step that was done."""
        self.changed += bool(step.lines)
        self.lines += step.lines
        self.notes += step.notes


def sync(*, dry_run: bool = False) -> Report:
    """Bring what the code declares into the database; disable what it no longer declares. Several at once are safe.

    Where nothing differs, nothing is written. Each schedule has a transaction of its own.

    Raises:
        ImportError: A task module cannot be imported; nothing is written, as nothing may be called gone.
        DatabaseError: The database does not answer, or has not our tables; what was written stays.
    """
    found, using = collect(), ledger.database()
    report = Report(checked=len(found.declared) + len(found.twice))
    report.problems += [
        f"{each.values['name']}: its key or name is declared twice, once in {each.module}" for each in found.twice
    ]
    rows = Rows.read_all(using, [each.values["name"] for each in found.declared])
    kept: set[int | None] = set()

    def do(key: str, names: list[str], plan_from: Callable[[Rows], Step]) -> None:
        step = plan_from(rows)
        if dry_run:
            step.apply()
        elif step.declaration is not None:
            step = _write(using, key, names, plan_from)
        report.add(step)
        kept.add(step.schedule.pk if step.schedule is not None else None)

    for declared in found.declared:
        name = declared.values["name"]
        try:
            values = values_of(declared_schedule(declared))
            do(declared.key, [name], partial(plan, declared, values, found.keys))
        except NameTaken as error:
            report.problems.append(str(error))
        except ValidationError as error:
            report.problems.append(f"{name}: {said(error)}")
    for key, declaration in sorted(rows.declarations.items()):
        if key in found.keys or declaration.pk in kept:
            continue
        # What an app declares that is left out here may run in another process, which has its packages.
        if registry.find_broken(rows.schedules[declaration.pk].task) is None:
            do(key, [], partial(plan_gone, key))
    return report


def sync_after_migrate(using: str, say: Callable[[str], Any]) -> None:
    """Sync after a migration of the database that holds the schedules, if it has our tables. Never fails `migrate`.

    What could not be written is logged as an error, and `delayq_sync` would fail because of it.
    """
    tables = connections[using].introspection.table_names()
    if using != ledger.database() or Declaration._meta.db_table not in tables:
        return
    try:
        report = sync()
    except Exception:  # also whatever the import of a task module raises
        logger.exception("The declared schedules were not synced. Correct it and run: manage.py delayq_sync")
        return
    for line in report.lines:
        say(line)
    for problem in report.problems:
        logger.error("A declared schedule was not synced: %s", problem)


def said(error: ValidationError) -> str:
    """Return what a form would say, in one line."""
    if not hasattr(error, "error_dict"):
        return " ".join(error.messages)
    return " ".join(f"{name}: {' '.join(messages)}" for name, messages in error.message_dict.items())


def _write(using: str, key: str, names: list[str], plan_from: Callable[[Rows], Step]) -> Step:
    """Plan again with locked rows, and write. Who comes second finds what the first has written, and has less to do."""
    left = MOST_ATTEMPTS
    while True:
        left -= 1
        try:
            with transaction.atomic(using=using):
                step = plan_from(Rows.lock(using, key, names))
                step.write(using)
                return step
        except IntegrityError:
            if not left:
                raise
