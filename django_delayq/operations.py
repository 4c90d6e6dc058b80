"""What a project puts into its own migrations.

Note [Renaming in a migration]
A migration sees the models of its state, which may be those of the first migration: what is touched has been there
since then. It sends no signal and asks no Redis, which need not be there: schedules get a new generation, by which the
sweep of any worker mirrors them within seconds, or the next worker that starts. Rows are found anew for each batch, so
that it can be run again after an interruption; for several transactions the migration has `atomic = False`.

Jobs are renamed that are open or have failed, as these can be retried. What old code enqueues while it is still running
keeps the old name, which TASK_ALIASES explains, and so do a job that starts or ends at that moment, and all history.
A unique key is that of the name under which it was enqueued: the same key under the new name is another one.
"""

from typing import Any

from django.db import router, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import Model

from . import ledger
from .fields import utcnow
from .jobs.callbacks import NAMES as CALLBACKS
from .models.versions import next_generation

APP = "django_delayq"
#: So many rows are written in one transaction, where the migration is not atomic.
BATCH = 1000
#: The statuses of jobs that may still be executed.
WALKED = ("queued", "retrying", "running", "failed", "lost")


class RenameTask(Operation):
    """Renames a task in schedules, in what the code declares, in pauses, and in jobs; reversible.

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
    _rename_jobs(state.apps.get_model(APP, "run"), using, old, new)


def _rename_jobs(model: Any, using: str, old: str, new: str) -> None:
    """Walk what is open or has failed by an index: there is none on the task."""
    for status in WALKED:
        found, last = ledger.with_status(status).using(using).filter(origin="job").order_by("pk"), 0
        while pks := list(found.filter(pk__gt=last).values_list("pk", flat=True)[:BATCH]):
            with transaction.atomic(using=using):
                rows = _rows(model, using).filter(pk__in=pks)
                rows.filter(task=old).update(task=new)
                calling = [row for row in rows.only("options") if _rename_callbacks(row.options or {}, old, new)]
                rows.bulk_update(calling, ["options"], batch_size=100)
            last = pks[-1]


def _rename_callbacks(options: dict[str, Any], old: str, new: str) -> bool:
    named = [name for name in CALLBACKS if options.get(name) == old]
    options.update(dict.fromkeys(named, new))
    return bool(named)


def _rows(model: type[Model], using: str) -> Any:
    return model._base_manager.using(using)
