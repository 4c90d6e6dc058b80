"""Indexes that Django has not for every database."""

from functools import cache
from typing import Any

from django.db import connections, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


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
