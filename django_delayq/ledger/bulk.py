"""Reads, inserts and updates many rows as tuples, in one statement or a few. Implements no rule of scheduling.

Note [Batches are tuples, not instances]
Instances of Django's models would take nine tenths of a worker's time. So batches use SQL that Django compiled once.
PostgreSQL receives the rows of a statement as one JSON text, which is written and read in C.

Note [Keys by subquery]
Given a hundred keys, PostgreSQL's planner scans the joined table, which takes three times as long. It cannot see keys
from a subquery: it assumes ten of them, and uses the index.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial, reduce
from pathlib import Path
from typing import Any

from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, DateTimeField, DurationField, JSONField, Model
from django.utils.dateparse import parse_datetime

from ..exceptions import DelayQError
from ..models import Schedule

Convert = Callable[[Any], Any]


class MissingTables(DelayQError):
    """The database does not have our tables yet: `manage.py migrate` creates them."""


def _build_condition(field: Any, connection: BaseDatabaseWrapper) -> str:
    """Return PostgreSQL's condition that a column is in a list, which is one parameter. See Note [Keys by subquery]."""
    return f"= ANY(ARRAY(SELECT json_array_elements_text(%s)::{field.rel_db_type(connection)}))"


class Reader:
    """Reads columns of rows that are selected by one column, the key. `names` are as in `values_list`."""

    def __init__(self, model: type[Model], key: str, names: Sequence[str], using: str, *, lock: bool = False) -> None:
        """With `lock`, lock the rows in order of the key; skip rows that other transactions have locked."""
        self._using, connection = using, connections[using]
        compiler = model._base_manager.using(using).order_by().values_list(*names).query.get_compiler(using=using)
        sql, self._parameters = compiler.as_sql()
        columns = [column for column, _, _ in compiler.select]
        self._converters = [
            (index, convert)
            for index, column in enumerate(columns)
            if (convert := _find_read_converter(column, connection))
        ]
        self._in_c = _has_psycopg(connection)
        # A sign before a column hides its type from Python's sqlite3 module, whose converters are slow.
        sign = "+" if connection.vendor == "sqlite" else ""
        selected = ", ".join(sign + column for _, (column, _), _ in compiler.select)
        self._sql = f"SELECT {selected}{sql[sql.index(' FROM ') :]}"  # noqa: S608
        quoted = connection.ops.quote_name
        field: Any = model._meta.get_field(key)
        self._key = f"{quoted(model._meta.db_table)}.{quoted(field.column)}"
        self._among = _build_condition(field, connection)
        self._end = f" ORDER BY {self._key}"
        if lock and connection.features.has_select_for_update:
            skip = connection.features.has_select_for_update_skip_locked
            how = connection.ops.for_update_sql(skip_locked=skip, no_key=connection.vendor == "postgresql")
            self._end += f" {how}"

    def read(self, keys: Collection[Any], where: str = "") -> list[list[Any]]:
        """Return the rows with these keys, ordered by key. `where` is additional SQL without user input."""
        if not keys:
            return []
        connection = connections[self._using]
        values: list[Any] = [*keys]
        if isinstance(keys, range):
            among, values = f"{self._key} BETWEEN %s AND %s", [keys.start, keys.stop - 1]
            if connection.vendor == "postgresql":  # see Note [Keys by subquery]
                among = f"{self._key} = ANY(ARRAY(SELECT generate_series(%s, %s)))"
        elif connection.vendor == "postgresql":  # one parameter: the driver searches the SQL for each one, in Python
            among, values = f"{self._key} {self._among}", [json.dumps(values)]
        else:
            among = f"{self._key} IN ({', '.join(['%s'] * len(keys))})"
        with connection.cursor() as cursor:
            if self._in_c:
                from psycopg.types.datetime import TimestamptzLoader

                cursor.cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
            cursor.execute(f"{self._sql} WHERE {among}{where}{self._end}", [*self._parameters, *values])
            rows = cursor.fetchall()
        return [_convert_row(row, self._converters) for row in rows]


def _convert_row(row: Sequence[Any], converters: Sequence[tuple[int, Convert]]) -> list[Any]:
    values = list(row)
    for index, convert in converters:
        value = values[index]
        if value is not None:
            values[index] = convert(value)
    return values


def _find_read_converter(column: Any, connection: BaseDatabaseWrapper) -> Convert | None:
    field = column.output_field
    if isinstance(field, JSONField) and not connection.ops.get_db_converters(column):
        return lambda text: [] if text == "[]" else {} if text == "{}" else json.loads(text)
    if isinstance(field, DateTimeField) and _has_naive_utc(connection):
        return _parse_instant
    if isinstance(field, DateTimeField) and _has_psycopg(connection):
        return None if connection.timezone_name == "UTC" else lambda instant: instant.astimezone(UTC)
    if isinstance(field, BooleanField) and connection.vendor == "sqlite":
        return bool
    if isinstance(field, DurationField) and not connection.features.has_native_duration_field:
        return partial(timedelta, 0, 0)
    converters = [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]
    if not converters:
        return None
    return lambda value: reduce(lambda found, step: step(found, column, connection), converters, value)


def _parse_instant(text: str) -> datetime | None:
    """Parse a text without a time zone as UTC; also accept other formats, as users' own SQL may write them."""
    try:
        instant = datetime.fromisoformat(f"{text}+00:00")  # ten times as fast as adding the zone afterwards
    except ValueError:
        instant = parse_datetime(str(text))  # type: ignore[assignment]
    return instant if instant is None or instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _has_naive_utc(connection: BaseDatabaseWrapper) -> bool:
    return connection.vendor == "sqlite" and connection.timezone in (None, UTC)


def _has_psycopg(connection: BaseDatabaseWrapper) -> bool:
    """Return True if the driver is psycopg 3, which parses instants in C. In Python, that takes 3/4 of a read."""
    return getattr(getattr(connection, "Database", None), "__name__", "") == "psycopg"


class Writer:
    """Inserts and updates rows of these columns. `names` are attributes of the model."""

    def __init__(self, model: type[Model], names: Sequence[str], using: str) -> None:
        self._using, connection = using, connections[using]
        by_name: dict[str, Any] = {field.attname: field for field in model._meta.concrete_fields}
        fields, quoted = [by_name[name] for name in names], connection.ops.quote_name
        self._columns = [quoted(field.column) for field in fields]
        self._among = _build_condition(fields[0], connection)
        self._table, self._pk = quoted(model._meta.db_table), quoted(str(model._meta.pk.column))
        self._writing = [
            (i, write) for i, field in enumerate(fields) if (write := _find_write_converter(field, connection))
        ]
        # PostgreSQL receives many rows as JSON, but one row as values: planning that takes half the time.
        as_text: dict[int, Convert] = {i: json.dumps for i, field in enumerate(fields) if isinstance(field, JSONField)}
        self._writing_one = list((dict(self._writing) | as_text).items())
        columns = ", ".join(self._columns)
        self._into = f"INSERT INTO {self._table} ({columns})"
        self._one = f"{self._into} VALUES ({', '.join(['%s'] * len(fields))})"
        values = ", ".join(_build_element(at, field, connection) for at, field in enumerate(fields))
        self._records = f"(SELECT {values} FROM jsonb_array_elements(%s::jsonb) v) x({columns})"  # noqa: S608

    def insert(self, rows: Iterable[Sequence[Any]], *, over: Sequence[str] = ()) -> list[int]:
        """Insert rows, all or none; return their keys. With `over`, overwrite these columns of existing rows."""
        written, connection = [_convert_row(row, self._writing) for row in rows], connections[self._using]
        end = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(connection.ops.quote_name, over))
        end = f" ON CONFLICT ({self._pk}) DO UPDATE SET {end}" if over else ""
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                sql = f"{self._into} SELECT * FROM {self._records}{end} RETURNING {self._pk}"  # noqa: S608
                cursor.execute(sql, [_json(written)])
                return [key for (key,) in cursor.fetchall()]
            cursor.executemany(f"{self._one}{end}", written)
            cursor.execute("SELECT last_insert_rowid()")
            last = cursor.fetchone()[0]  # SQLite has one writer at a time: the keys are consecutive
            return list(range(last - len(written) + 1, last + 1))

    def insert_one(self, row: Sequence[Any], *, unless_there: str = "") -> int:
        """Insert a row; return its primary key, or 0 if another row has its value of the column `unless_there`."""
        connection, sql = connections[self._using], self._one
        if unless_there:
            sql += f" ON CONFLICT ({connection.ops.quote_name(unless_there)}) DO NOTHING"
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(f"{sql} RETURNING {self._pk}", _convert_row(row, self._writing_one))
                found = cursor.fetchone()
                return 0 if found is None else int(found[0])
            cursor.execute(sql, _convert_row(row, self._writing_one))
            return int(cursor.lastrowid or 0) if cursor.rowcount else 0

    def update(self, rows: Iterable[Sequence[Any]]) -> None:
        """Update rows: the first column is the key, the others are written."""
        written = [_convert_row(row, self._writing) for row in rows]
        if not written:
            return
        key, *others = self._columns
        with connections[self._using].cursor() as cursor:
            if connections[self._using].vendor == "postgresql":
                values = ", ".join(f"{column} = x.{column}" for column in others)
                sql = f"UPDATE {self._table} t SET {values} FROM {self._records} WHERE t.{key} = x.{key}"  # noqa: S608
                keys = _json([row[0] for row in written])
                cursor.execute(f"{sql} AND t.{key} {self._among}", [_json(written), keys])
            else:
                values = ", ".join(f"{column} = %s" for column in others)
                sql = f"UPDATE {self._table} SET {values} WHERE {key} = %s"  # noqa: S608
                cursor.executemany(sql, [(*row[1:], row[0]) for row in written])


_json = json.JSONEncoder(separators=(",", ":")).encode


def _build_element(at: int, field: Any, connection: BaseDatabaseWrapper) -> str:
    """Return PostgreSQL's SQL of a value in a JSON row. The cast omits the length, which would truncate silently."""
    if isinstance(field, JSONField):
        return f"NULLIF(v->{at}, 'null')"
    return f"(v->>{at})::{field.rel_db_type(connection).partition('(')[0]}"


def _find_write_converter(field: Any, connection: BaseDatabaseWrapper) -> Convert | None:
    postgresql = connection.vendor == "postgresql"
    if isinstance(field, JSONField):
        return None if postgresql else json.dumps
    if isinstance(field, DateTimeField):
        if postgresql:
            return _iso_of
        if _has_naive_utc(connection):
            return _format_instant
        return lambda instant: field.get_db_prep_save(instant, connection)
    return None


_iso_of = lru_cache(maxsize=1000)(datetime.isoformat)  # instants repeat within a batch


@lru_cache(maxsize=1000)
def _format_instant(instant: datetime) -> str:
    instant = instant.astimezone(UTC)
    return datetime.combine(instant, instant.time()).isoformat(" ")  # three times as fast as removing the zone


#: Return the only `Reader` or `Writer` with these arguments.
reader, writer = cache(Reader), cache(Writer)
#: Maximum wait for a lock on PostgreSQL, in ms. See `locks.py`, Note [Locked rows are skipped].
LOCK_MS = 500


@contextmanager
def writing(using: str) -> Iterator[None]:
    """Begin a transaction that waits at most LOCK_MS for a lock, then raises an OperationalError."""
    outermost = not connections[using].in_atomic_block
    with transaction.atomic(using=using):
        if outermost and connections[using].vendor == "postgresql":
            with connections[using].cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
        yield


def get_database() -> str:
    """Return the alias of the database that holds schedules, states and runs."""
    return router.db_for_write(Schedule)


def check_tables() -> None:
    """Raise `MissingTables`, which says what to do, if the migrations were not run."""
    using = get_database()
    if Schedule._meta.db_table not in connections[using].introspection.table_names():
        raise MissingTables(f"The database {using!r} has no tables of django_delayq. Run: manage.py migrate")


#: Minimum `timeout` of SQLite, in seconds.
LEAST_TIMEOUT_SECONDS = 10
WANTED = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"}
_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal", re.IGNORECASE)


def list_missing_options(connection: BaseDatabaseWrapper) -> list[str]:
    """Return what the OPTIONS of this database lack; an empty list if it is not an SQLite file."""
    name, options = str(connection.settings_dict["NAME"]), connection.settings_dict.get("OPTIONS") or {}
    if connection.vendor != "sqlite" or ":memory:" in name or "mode=memory" in name:
        return []
    found = []
    if str(options.get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        found.append("transaction_mode is not IMMEDIATE")
    timeout = options.get("timeout", 5)
    if not isinstance(timeout, int | float) or timeout < LEAST_TIMEOUT_SECONDS:
        found.append(f"timeout is {timeout} s")
    if not _WAL.search(str(options.get("init_command", ""))) and not _is_wal(name):
        found.append("init_command sets no WAL")
    return found


def prepare(connection: BaseDatabaseWrapper) -> None:
    """Set missing OPTIONS in this process, at its start. The file keeps the WAL mode."""
    if list_missing_options(connection):
        connection.settings_dict["OPTIONS"] = WANTED | (connection.settings_dict.get("OPTIONS") or {})
        connection.close()


def _is_wal(name: str) -> bool:
    """Return True if the file is in WAL mode, which it keeps: bytes 18 and 19 of its header are then 2."""
    with suppress(OSError), Path(name).open("rb") as file:
        return file.read(20)[18:] == b"\x02\x02"
    return False
