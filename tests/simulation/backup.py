"""Copies of the whole database and of all keys, and putting them back."""

import copy

from django.core.management.color import no_style
from django.db import connection, transaction

from django_delayq.index import keys
from django_delayq.models import Run, Schedule, ScheduleState, Tombstone

MODELS = (Schedule, ScheduleState, Run, Tombstone)


class Backup:
    """Of one history. The last copy of each kind can be put back any number of times."""

    def __init__(self, world):
        self.world = world
        self.tables = self.keys = None

    # -- database

    def clear(self):
        """Begin with empty tables and no keys."""
        with transaction.atomic(), connection.cursor() as cursor:
            tables = [model._meta.db_table for model in MODELS]
            for statement in connection.ops.sql_flush(no_style(), tables, reset_sequences=True, allow_cascade=True):
                cursor.execute(statement)
        client, prefix = self.world.stage.client, self.world.config.prefix
        patterns = [f"{{{prefix}:*", *keys.list_prefix_keys(prefix)]
        names = [name for pattern in patterns for name in client.scan_iter(match=pattern, count=1000)]
        if names:
            client.delete(*names)

    def save_tables(self):
        """Copy the database, and what was expected of it."""
        tables = {}
        with connection.cursor() as cursor:
            for model in MODELS:
                cursor.execute(f'SELECT * FROM "{model._meta.db_table}"')  # noqa: S608 - our own names
                tables[model] = cursor.fetchall()
        invariants = self.world.invariants
        expected = self.world.oracle.copied(), dict(invariants.final), dict(self.world.names), dict(self.world.wanted)
        self.tables = tables, self._sequences(), copy.deepcopy(expected)

    def restore_tables(self):
        """Put the copy back, with the sequences as they were then: primary keys come again."""
        tables, sequences, expected = self.tables
        with transaction.atomic(), connection.cursor() as cursor:
            for model in reversed(MODELS):
                cursor.execute(f'DELETE FROM "{model._meta.db_table}"')  # noqa: S608 - our own names
            for model, rows in tables.items():
                if rows:
                    marks = ", ".join(["%s"] * len(rows[0]))
                    cursor.executemany(f'INSERT INTO "{model._meta.db_table}" VALUES ({marks})', rows)  # noqa: S608
            self._set_sequences(cursor, sequences)
        eras, final, names, wanted = copy.deepcopy(expected)
        self.world.oracle.eras, self.world.invariants.final, self.world.names = eras, final, names
        self.world.wanted = wanted
        self.world.elsewhere.clear()
        invariants = self.world.invariants
        for noted in (invariants.begun, invariants.counted, invariants.alone, invariants.owed):
            noted.clear()

    def skip_keys(self, last):
        """Give no key of a run up to this one: a transaction that is open elsewhere has them."""
        if connection.vendor == "sqlite":
            table = Run._meta.db_table
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s AND seq < %s", [table, last])
                cursor.execute(
                    "INSERT INTO sqlite_sequence (name, seq) SELECT %s, %s"
                    " WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = %s)",
                    [table, last, table],
                )

    def _sequences(self):
        if connection.vendor != "sqlite":
            return None
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, seq FROM sqlite_sequence")
            return cursor.fetchall()

    def _set_sequences(self, cursor, sequences):
        if sequences is None:
            for statement in connection.ops.sequence_reset_sql(no_style(), MODELS):
                cursor.execute(statement)
            return
        ours = {model._meta.db_table for model in MODELS}
        known = {name for name, _ in sequences}
        for table in ours - known:
            cursor.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = %s", [table])
        for name, value in sequences:
            cursor.execute("UPDATE sqlite_sequence SET seq = %s WHERE name = %s", [value, name])

    # -- Redis

    def save_keys(self):
        """Copy every key, with what is left of its life."""
        names = self.world.key_names()
        pipeline = self.world.stage.client.pipeline(transaction=True)
        for name in names:
            pipeline.dump(name)
            pipeline.pttl(name)
        replies = pipeline.execute()
        self.keys = self.world.config.shards, list(zip(names, replies[::2], replies[1::2], strict=True))

    def restore_keys(self):
        """Put the copy of the keys back; what came since is gone. Return how many shards there were then."""
        pipeline = self.world.stage.client.pipeline(transaction=True)
        pipeline.delete(*self.world.key_names())
        shards, copied = self.keys
        for name, value, ttl in copied:
            if value is not None:
                pipeline.restore(name, max(ttl, 0), value)
        pipeline.execute()
        return shards
