"""Fills a PostgreSQL database with many schedules, their states and runs, by SQL: a realistic mixture, no two alike.

Of the schedules 4% are paused, 5% finished, 2% failing, 1% never ran, 0.1% are new and have no state. Of the runs 4%
did not succeed, 0.02% were ordered by people, and a tenth belongs to ten busy schedules.
"""

from collections.abc import Mapping
from typing import Any

from django.core.management.color import no_style
from django.db import connection, transaction
from django.db.models import Model

#: Each number with one that looks drawn by lot: so what a schedule is called says nothing about how it stands.
NUMBERS = "(SELECT n, abs(hashint4(n)::bigint) h FROM generate_series(1, %({})s) n) numbers"
DUE = "date_trunc('milliseconds', now() - (%(runs)s - n) * interval '30 days' / %(runs)s)"
SCHEDULE = {
    "id": "t.id + n",
    "name": "(array['report', 'invoice', 'sync', 'cleanup', 'reminder'])[1 + n %% 5] || ' ' || lpad(n::text, 7, '0')",
    "task": "'tests.app.tasks.' || CASE WHEN n %% 5000 = 0 THEN 'flaky' WHEN n %% 3 = 0 THEN 'fail' ELSE 'noop' END",
    "kind": "CASE WHEN n %% 10 < 6 THEN 'cron' WHEN n %% 10 < 9 THEN 'every' ELSE 'once' END",
    "cron": "CASE WHEN n %% 10 < 6 THEN (n %% 60) || ' ' || (n %% 24) || ' * * *' ELSE '' END",
    "every": "CASE WHEN n %% 10 BETWEEN 6 AND 8 THEN interval '1 minute' * (60 + n %% 600) END",
    "at": "CASE WHEN n %% 10 = 9 THEN now() + (n %% 1000 - 500) * interval '1 hour' END",
    "enabled": "n %% 25 <> 8",
    "queue": "CASE WHEN n %% 20000 = 0 THEN 'former' WHEN n %% 10 = 4 THEN 'mail' ELSE 'default' END",
    "generation": "t.generation + n",
    "synced_generation": "CASE WHEN n %% 1000 = 7 THEN 0 ELSE t.generation + n END",
}
STATE = {
    "schedule_id": "t.schedule_id + n",
    "next_due_at": "CASE WHEN n %% 25 <> 8 AND NOT (n %% 10 = 9 AND n %% 1000 < 500) AND h %% 5000 <> 3 "
    "THEN now() + (n::bigint * 7919 %% 86400) * interval '1 second' END",
    "condition": "CASE WHEN n %% 10 = 9 AND n %% 1000 < 500 THEN 'finished' WHEN h %% 5000 = 3 THEN 'broken' "
    "ELSE 'active' END",
    "last_status": "CASE WHEN h %% 100 = 42 THEN '' WHEN h %% 50 = 11 THEN 'failed' WHEN h %% 70 = 12 THEN 'skipped' "
    "WHEN h %% 10000 = 13 THEN 'lost' ELSE 'succeeded' END",
    "last_outcome_at": "CASE WHEN h %% 100 <> 42 THEN now() - (n::bigint * 104729 %% 86400000) * interval '1 ms' END",
    "last_latency_ms": "n %% 900",
    "failing_streak": "CASE WHEN h %% 50 = 11 THEN 1 + h %% 7 ELSE 0 END",
}
RUN = {
    "id": "t.id + n",
    "schedule_id": "s.id",
    "schedule_name": "s.name",
    "task": "s.task",
    "queue": "s.queue",
    "origin": "CASE WHEN n %% 10000 = 5 THEN 'manual' WHEN n %% 10000 = 6 THEN 'backfill' ELSE 'due' END",
    "due_at": DUE,
    "status": "CASE WHEN h %% 50 = 11 THEN 'failed' WHEN h %% 60 = 12 THEN 'skipped' WHEN h %% 100000 = 13 THEN 'lost' "
    "WHEN %(runs)s - n < 300 AND n %% 3 = 0 THEN (array['queued', 'running', 'retrying'])[1 + n / 3 %% 3] "
    "ELSE 'succeeded' END",
    "error": "CASE WHEN h %% 50 = 11 THEN repeat('File \"/srv/tasks.py\", line 12' || chr(10), 16) ELSE '' END",
    "claimed_at": f"{DUE} + interval '12 ms'",
    "started_at": f"{DUE} + interval '13 ms'",
    "finished_at": f"CASE WHEN %(runs)s - n >= 300 THEN {DUE} + interval '2 s' END",
    "worker": "'web-' || n %% 8 || ':4711'",
}


def fill(schedules: int, runs: int) -> None:
    """Make so many rows of each. The tables must be empty."""
    from datetime import UTC, datetime

    from django_delayq.models import Run, Schedule, ScheduleState

    now = datetime.now(UTC)
    first = Schedule.objects.create(name="first", task="tests.app.tasks.noop", kind="cron", cron="0 9 * * *")
    state, _created = ScheduleState.objects.get_or_create(schedule=first)
    run = Run.build_for(first, now, status="succeeded", attempt=1)
    run.save()
    numbers = {"schedules": schedules, "runs": runs}
    copy(Schedule, SCHEDULE, NUMBERS.format("schedules"), first.pk, numbers)
    copy(ScheduleState, STATE, NUMBERS.format("schedules"), state.pk, numbers, where="n %% 1000 <> 7")
    owner = f"{first.pk} + 1 + CASE WHEN n %% 10 = 0 THEN n / 10 %% 10 ELSE n::bigint * 7919 %% %(schedules)s END"
    source = f"{NUMBERS.format('runs')} JOIN django_delayq_schedule s ON s.id = {owner}"
    copy(Run, RUN, source, run.pk, numbers)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def copy(
    model: type[Model],
    changed: Mapping[str, str],
    source: str,
    pk: Any,
    numbers: Mapping[str, int],
    where: str = "true",
) -> None:
    """Insert copies of a row, changed by these expressions of `n`; indexes are taken away meanwhile and built again."""
    table, names = model._meta.db_table, [field.column for field in model._meta.concrete_fields]
    values = ", ".join(changed.get(name, f't."{name}"') for name in names)
    columns = ", ".join(f'"{name}"' for name in names)
    key = model._meta.pk.column
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL maintenance_work_mem = '512MB'")
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute(
            "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid), conname, pg_get_constraintdef(c.oid) "
            "FROM pg_index LEFT JOIN pg_constraint c ON conindid = indexrelid AND contype = 'u' "
            "WHERE indrelid = %s::regclass AND NOT indisprimary",
            [table],
        )
        found = cursor.fetchall()
        for index, _made, constraint, _defined in found:
            cursor.execute(
                f'ALTER TABLE {table} DROP CONSTRAINT "{constraint}"' if constraint else f"DROP INDEX {index}"
            )
        cursor.execute(
            f"INSERT INTO {table} ({columns}) SELECT {values} FROM {source}, {table} t "  # noqa: S608 - all of it ours
            f"WHERE t.{key} = {pk} AND {where}",
            numbers,
        )
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for _index, made, constraint, defined in found:
            cursor.execute(f'ALTER TABLE {table} ADD CONSTRAINT "{constraint}" {defined}' if constraint else made)
        for sql in connection.ops.sequence_reset_sql(no_style(), [model]):
            cursor.execute(sql)
