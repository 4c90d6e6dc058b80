"""What a project puts into its own migrations.

Note [Renaming in a migration]
A migration sees the models of its state, which may be those of the first migration: what is touched has been there
since then. It sends no signal and asks no Redis, which need not be there: schedules get a new generation, by which the
sweep of any worker mirrors them within seconds, or the next worker that starts. Rows are found anew for each batch, so
that it can be run again after an interruption; for several transactions the migration has `atomic = False`.

Rows of jobs hold the call unsigned, and it is renamed there, for what is rebuilt or revived from them. What waits in
Redis is signed, and a migration that could sign it would have to find it while workers take it: it keeps the old name,
which TASK_ALIASES explains. So do what old code enqueues while it is still running, runs and other history.
"""

import json
from functools import reduce
from operator import or_
from typing import Any

from django.db import router, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import Model, Q

from .fields import utcnow
from .jobs.callbacks import NAMES as CALLBACKS
from .models.versions import next_generation

APP = "django_delayq"
#: So many rows are written in one transaction, where the migration is not atomic.
BATCH = 1000


class RenameTask(Operation):
    """Renames a task in schedules, in what the code declares, in pauses, and in the rows of jobs; reversible.

    Also where it is called after an outcome (`on_success`, `on_failure`).

    For a project's own migration, which depends on one of `django_delayq`. Keep the old name in TASK_ALIASES until no
    job that waits has it. Backwards, it renames whatever has the new name. See Note [Renaming in a migration].

    Raises:
        ValueError: When it runs, the migration depends on none of `django_delayq`.
    """

    reduces_to_sql = False
    reversible = True

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change no model."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Write the new name where the old one stands."""
        _rename(schema_editor.connection.alias, from_state, self.old, self.new)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Write the old name where the new one stands."""
        _rename(schema_editor.connection.alias, from_state, self.new, self.old)

    def describe(self) -> str:
        """Say what it does, for `migrate --plan`."""
        return f"Rename the task {self.old} to {self.new} in schedules and jobs"

    @property
    def migration_name_fragment(self) -> str:
        """The name that `makemigrations` would give."""
        return f"rename_task_{self.old.rpartition('.')[2]}".lower()


def _rename(using: str, state: ProjectState, old: str, new: str) -> None:
    if (APP, "schedule") not in state.models:
        raise ValueError(
            f'RenameTask needs the tables of django_delayq: add ("{APP}", "0001_initial"), or a later one, to the '
            "dependencies of the migration that has it."
        )
    schedule: Any = state.apps.get_model(APP, "schedule")
    if not router.allow_migrate_model(using, schedule):
        return
    while pks := list(_rows(schedule, using).filter(task=old).values_list("pk", flat=True)[:BATCH]):
        rows = _rows(schedule, using).filter(pk__in=pks, task=old)
        rows.update(task=new, generation=next_generation(), updated_at=utcnow())
    for field in CALLBACKS:
        _rows(schedule, using).filter(**{field: old}).update(**{field: new})
    for name, column, lookup in (("declaration", "key", {}), ("control", "name", {"kind": "task"})):
        rows = _rows(state.apps.get_model(APP, name), using)
        if not rows.filter(**lookup, **{column: new}).exists():
            rows.filter(**lookup, **{column: old}).update(**{column: new})
    _rename_jobs(state.apps.get_model(APP, "job"), using, old, new)


def _rename_jobs(model: Any, using: str, old: str, new: str) -> None:
    """Walk by the primary key: there is no index on the task, and no row is looked at twice."""
    before, after = (f'"task":{json.dumps(name)},"args":' for name in (old, new))
    options = [tuple(f'"{field}":{json.dumps(name)}' for name in (old, new)) for field in CALLBACKS]
    wanted = Q(task=old) | reduce(or_, (Q(call__contains=was) for was, _ in options))
    rows, last = _rows(model, using).order_by("pk"), 0
    while (end := max(rows.filter(pk__gt=last).values_list("pk", flat=True)[:BATCH], default=0)) > 0:
        with transaction.atomic(using=using):
            found = list(rows.filter(wanted, pk__gt=last, pk__lte=end).only("task", "call"))
            for row in found:
                if row.task == old:  # the first is the call's own: a trace, which stands before it, holds no such text
                    row.task, row.call = new, row.call.replace(before, after, 1)
                head, mark, tail = row.call.rpartition(',"enqueued":')  # behind all that is somebody's own text
                for was, now in options:
                    tail = tail.replace(was, now)
                row.call = f"{head}{mark}{tail}"
            _rows(model, using).bulk_update(found, ["task", "call"], batch_size=100)
        last = end


def _rows(model: type[Model], using: str) -> Any:
    return model._base_manager.using(using)
