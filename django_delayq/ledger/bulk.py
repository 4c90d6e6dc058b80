"""Reads, inserts and updates many rows as tuples, in one statement or a few. Knows the database, but no rule.

Note [Tuples]
A worker reads and writes thousands of rows a second. Django would make an instance of each row and look at each value
several times, and that would be nine tenths of the worker's time. So what is asked for each batch is asked here: by
statements that Django has made, once, or of its names of tables and columns. PostgreSQL gets the rows of a statement as
one text of JSON, because that is written and read in C; the others get their values one by one.

Note [By the index]
Where PostgreSQL's planner sees a hundred keys and a table of ten thousand rows, it reads all of the table that is
joined, and takes three times as long. Keys that come out of a subquery it cannot see; it takes them for ten, and goes
by the index.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
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
    """The database does not have our tables yet: `manage.py migrate` makes them."""


def _among(field: Any, connection: BaseDatabaseWrapper) -> str:
    """Return the condition that a column is one of a list, which is one parameter. See Note [By the index]."""
    return f"= ANY(ARRAY(SELECT json_array_elements_text(%s)::{field.rel_db_type(connection)}))"


class Reader:
    """Columns of rows that are chosen by one of their columns. `names` are as in `values_list`."""

    def __init__(self, model: type[Model], key: str, names: Sequence[str], using: str, *, lock: bool = False) -> None:
        """`lock`: lock the rows that are read, by the order of the key; those that others have locked are left out."""
        self._using, connection = using, connections[using]
        compiler = model._base_manager.using(using).order_by().values_list(*names).query.get_compiler(using=using)
        sql, self._parameters = compiler.as_sql()
        columns = [column for column, _, _ in compiler.select]
        self._converters = [
            (index, convert) for index, column in enumerate(columns) if (convert := _reading(column, connection))
        ]
        self._in_c = _instants_in_c(connection)
        # A sign before a column hides its type from Python's module, which else converts each value, and slowly.
        sign = "+" if connection.vendor == "sqlite" else ""
        selected = ", ".join(sign + column for _, (column, _), _ in compiler.select)
        self._sql = f"SELECT {selected}{sql[sql.index(' FROM ') :]}"  # noqa: S608
        quoted = connection.ops.quote_name
        field: Any = model._meta.get_field(key)
        self._key = f"{quoted(model._meta.db_table)}.{quoted(field.column)}"
        self._among = _among(field, connection)
        self._end = f" ORDER BY {self._key}"
        if lock and connection.features.has_select_for_update:
            skip = connection.features.has_select_for_update_skip_locked
            how = connection.ops.for_update_sql(skip_locked=skip, no_key=connection.vendor == "postgresql")
            self._end += f" {how}"

    def read(self, keys: Collection[Any], where: str = "") -> list[list[Any]]:
        """Return the rows with these keys, by their order; `where` is more SQL without values of anybody's."""
        if not keys:
            return []
        connection = connections[self._using]
        values: list[Any] = [*keys]
        if isinstance(keys, range):
            among, values = f"{self._key} BETWEEN %s AND %s", [keys.start, keys.stop - 1]
            if connection.vendor == "postgresql":  # see Note [By the index]
                among = f"{self._key} = ANY(ARRAY(SELECT generate_series(%s, %s)))"
        elif connection.vendor == "postgresql":  # one parameter: its driver looks for each in the text, in Python
            among, values = f"{self._key} {self._among}", [json.dumps(values)]
        else:
            among = f"{self._key} IN ({', '.join(['%s'] * len(keys))})"
        with connection.cursor() as cursor:
            if self._in_c:
                from psycopg.types.datetime import TimestamptzLoader

                cursor.cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
            cursor.execute(f"{self._sql} WHERE {among}{where}{self._end}", [*self._parameters, *values])
            rows = cursor.fetchall()
        return [_converted(row, self._converters) for row in rows]


def _converted(row: Sequence[Any], converters: Sequence[tuple[int, Convert]]) -> list[Any]:
    """Return a row with some of its values converted, but for those that are None."""
    values = list(row)
    for index, convert in converters:
        value = values[index]
        if value is not None:
            values[index] = convert(value)
    return values


def _reading(column: Any, connection: BaseDatabaseWrapper) -> Convert | None:
    """Return what makes a value of a database into one of Python; None where it is one."""
    field = column.output_field
    if isinstance(field, JSONField) and not connection.ops.get_db_converters(column):
        return lambda text: [] if text == "[]" else {} if text == "{}" else json.loads(text)
    if isinstance(field, DateTimeField) and _naive_utc(connection):
        return _instant_of
    if isinstance(field, DateTimeField) and _instants_in_c(connection):
        return None if connection.timezone_name == "UTC" else lambda instant: instant.astimezone(UTC)
    if isinstance(field, BooleanField) and connection.vendor == "sqlite":
        return bool
    if isinstance(field, DurationField) and not connection.features.has_native_duration_field:
        return partial(timedelta, 0, 0)
    converters = [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]
    if not converters:
        return None

    def convert(value: Any) -> Any:
        for step in converters:
            value = step(value, column, connection)
        return value

    return convert


def _instant_of(text: str) -> datetime | None:
    """Return the instant of a text without a zone, in UTC, or of whatever else somebody's own SQL has written."""
    try:
        instant = datetime.fromisoformat(f"{text}+00:00")  # a tenth of what putting the zone in afterwards takes
    except ValueError:
        instant = parse_datetime(str(text))  # type: ignore[assignment]
    return instant if instant is None or instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _naive_utc(connection: BaseDatabaseWrapper) -> bool:
    """Say whether instants stand there in UTC and are read without a zone: `UTCDateTimeField` on SQLite."""
    return connection.vendor == "sqlite" and connection.timezone in (None, UTC)


def _instants_in_c(connection: BaseDatabaseWrapper) -> bool:
    """Say whether the driver can make instants in C. Django's way, in Python, takes three quarters of reading a row."""
    return getattr(getattr(connection, "Database", None), "__name__", "") == "psycopg"


class Writer:
    """Inserts and updates rows of these columns; `names` are attributes of the model."""

    def __init__(self, model: type[Model], names: Sequence[str], using: str) -> None:
        self._using, connection = using, connections[using]
        by_name: dict[str, Any] = {field.attname: field for field in model._meta.concrete_fields}
        fields, quoted = [by_name[name] for name in names], connection.ops.quote_name
        self._columns = [quoted(field.column) for field in fields]
        self._among = _among(fields[0], connection)
        self._table, self._pk = quoted(model._meta.db_table), quoted(str(model._meta.pk.column))
        self._writing = [(i, write) for i, field in enumerate(fields) if (write := _writing(field, connection))]
        # PostgreSQL gets many rows as JSON, and one as values: it plans that in half the time.
        as_text: dict[int, Convert] = {i: json.dumps for i, field in enumerate(fields) if isinstance(field, JSONField)}
        self._writing_one = list((dict(self._writing) | as_text).items())
        columns = ", ".join(self._columns)
        self._into = f"INSERT INTO {self._table} ({columns})"
        self._one = f"{self._into} VALUES ({', '.join(['%s'] * len(fields))})"
        values = ", ".join(_element(at, field, connection) for at, field in enumerate(fields))
        self._records = f"(SELECT {values} FROM jsonb_array_elements(%s::jsonb) v) x({columns})"  # noqa: S608

    def insert(self, rows: Iterable[Sequence[Any]], *, over: Sequence[str] = ()) -> list[int]:
        """Insert rows; return their primary keys. Where one is there already, write these columns over it, if any.

        Raises:
            DataError, IntegrityError: None was inserted; the transaction, on PostgreSQL, is to be rolled back.
        """
        written, connection = [_converted(row, self._writing) for row in rows], connections[self._using]
        end = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(connection.ops.quote_name, over))
        end = f" ON CONFLICT ({self._pk}) DO UPDATE SET {end}" if over else ""
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                sql = f"{self._into} SELECT * FROM {self._records}{end} RETURNING {self._pk}"  # noqa: S608
                cursor.execute(sql, [_json(written)])
                return [key for (key,) in cursor.fetchall()]
            if connection.vendor == "sqlite":  # has one writer, and counts on
                cursor.executemany(f"{self._one}{end}", written)
                cursor.execute("SELECT last_insert_rowid()")
                last = cursor.fetchone()[0]
                return list(range(last - len(written) + 1, last + 1))
            keys = []
            for row in written:
                cursor.execute(self._one, row)
                keys.append(cursor.lastrowid)
        return keys

    def insert_one(self, row: Sequence[Any], *, unless_there: str = "") -> int:
        """Insert a row; return its primary key. 0 where another one has its value of the column `unless_there`.

        Raises:
            DataError, IntegrityError: It was not inserted.
        """
        connection, sql = connections[self._using], self._one
        if unless_there:
            sql += f" ON CONFLICT ({connection.ops.quote_name(unless_there)}) DO NOTHING"
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(f"{sql} RETURNING {self._pk}", _converted(row, self._writing_one))
                found = cursor.fetchone()
                return 0 if found is None else int(found[0])
            cursor.execute(sql, _converted(row, self._writing_one))
            return int(cursor.lastrowid or 0) if cursor.rowcount else 0

    def update(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write rows over those whose column of the first name is the same."""
        written = [_converted(row, self._writing) for row in rows]
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


def _element(at: int, field: Any, connection: BaseDatabaseWrapper) -> str:
    """Return a column's value out of a row that PostgreSQL has got as a list; one too long is refused by the column."""
    if isinstance(field, JSONField):
        return f"NULLIF(v->{at}, 'null')"
    return f"(v->>{at})::{field.rel_db_type(connection).partition('(')[0]}"


def _writing(field: Any, connection: BaseDatabaseWrapper) -> Convert | None:
    """Return what makes a value of Python into one for a database, or for JSON; None where it is one."""
    postgresql = connection.vendor == "postgresql"
    if isinstance(field, JSONField):
        return None if postgresql else json.dumps
    if isinstance(field, DateTimeField):
        if postgresql:
            return _iso_of
        if _naive_utc(connection):
            return _text_of
        return lambda instant: field.get_db_prep_save(instant, connection)
    return None


_iso_of = lru_cache(maxsize=1000)(datetime.isoformat)  # a batch has some of them many times


@lru_cache(maxsize=1000)
def _text_of(instant: datetime) -> str:
    """Return an instant as Django stores it where it stores no zone."""
    instant = instant.astimezone(UTC)
    return datetime.combine(instant, instant.time()).isoformat(" ")  # a third of what taking the zone away takes


@cache
def reader(model: type[Model], key: str, names: tuple[str, ...], using: str, *, lock: bool = False) -> Reader:
    """Return the one `Reader` for these."""
    return Reader(model, key, names, using, lock=lock)


@cache
def writer(model: type[Model], names: tuple[str, ...], using: str) -> Writer:
    """Return the one `Writer` for these."""
    return Writer(model, names, using)


#: See `locks.py`, Note [Nobody's row is waited for].
LOCK_MS = 500


@contextmanager
def writing(using: str) -> Iterator[None]:
    """Begin a transaction that waits for nobody's lock for longer than LOCK_MS; within another one, as that one does.

    Raises:
        OperationalError: Somebody has locked what cannot be skipped.
    """
    outermost = not connections[using].in_atomic_block
    with transaction.atomic(using=using):
        if outermost and connections[using].vendor == "postgresql":
            with connections[using].cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
        yield


def database() -> str:
    """Return the alias of the database that holds schedules, states and runs together."""
    return router.db_for_write(Schedule)


def check_tables() -> None:
    """Make sure that the migrations were run.

    Raises:
        MissingTables: They were not; says what to do.
    """
    using = database()
    if Schedule._meta.db_table not in connections[using].introspection.table_names():
        raise MissingTables(f"The database {using!r} has no tables of django_delayq. Run: manage.py migrate")


#: Seconds. A writer of SQLite that waits less than this for its turn gives up while workers are busy.
LEAST_TIMEOUT_SECONDS = 10
WANTED = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"}
_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal", re.IGNORECASE)


def lacking(connection: BaseDatabaseWrapper) -> list[str]:
    """Return what the OPTIONS of this database lack; nothing where it is no file of SQLite."""
    name, options = str(connection.settings_dict["NAME"]), _options(connection)
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


def prepare(connection: BaseDatabaseWrapper) -> list[str]:
    """Set the OPTIONS that the project does not set, for all threads of this process; return what was lacking.

    For a process of ours, at its start: the file keeps the WAL mode, the rest is of this process alone.
    """
    found = lacking(connection)
    if found:
        options = _options(connection)
        for name, value in WANTED.items():
            options.setdefault(name, value)
        connection.close()
    return found


def _options(connection: BaseDatabaseWrapper) -> dict[str, Any]:
    options: dict[str, Any] = connection.settings_dict.setdefault("OPTIONS", {})
    return options


def _is_wal(name: str) -> bool:
    """Say whether the file is in this mode already: it keeps it. Bytes 18 and 19 of its header are 2 then."""
    with suppress(OSError), Path(name).open("rb") as file:
        return file.read(20)[18:] == b"\x02\x02"
    return False
