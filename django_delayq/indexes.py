"""Indexes that Django has not for every database, and how they come into a table that is in use."""

from functools import cache
from typing import Any

from django.db import connections, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import AddIndex
from django.db.migrations.state import ProjectState


class PrefixIndex(models.Index):
    """An index on one column of text, by which `istartswith` finds rows, whatever the collation of the database."""

    #: What Django asks by: `UPPER(…) LIKE` on PostgreSQL, `LIKE` on SQLite, which ignores the case of ASCII.
    columns = {"postgresql": "UPPER({}) text_pattern_ops", "sqlite": "{} COLLATE NOCASE"}

    def create_sql(
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor, using: str = "", **kwargs: Any
    ) -> Any:
        """Return the statement; on other databases it is a plain index."""
        statement: Any = super().create_sql(model, schema_editor, using, **kwargs)
        column = self.columns.get(schema_editor.connection.vendor)
        if column is not None:
            name: Any = model._meta.get_field(self.fields[0])
            statement.parts["columns"] = column.format(schema_editor.quote_name(name.column))
        return statement


#: Made by hand, see docs/size.md: with it a search in a long list finds a text anywhere in names and tasks.
TRIGRAMS = "delayq_schedule_trigrams"


@cache
def has_trigrams(alias: str) -> bool:
    """Say whether a database has this index. A process asks once."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [TRIGRAMS])
        return bool(cursor.fetchone() == (True,))


class AddIndexConcurrently(AddIndex):
    """Adds an index; on PostgreSQL without locking the table, for which the migration must not be atomic.

    After an interruption it can be run again: what is there is left, what was not finished is made anew. Django's own
    operation of this name knows PostgreSQL only.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Add the index unless it is there."""
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or connection.in_atomic_block:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(connection.alias, model):
            return
        with connection.cursor() as cursor:
            cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [self.index.name])
            found = cursor.fetchone()
        if found == (False,):
            schema_editor.execute(f"DROP INDEX CONCURRENTLY {schema_editor.quote_name(self.index.name)}")
        if found != (True,):
            schema_editor.execute(str(self.index.create_sql(model, schema_editor, concurrently=True)), params=None)
