"""F20: however definitions are written, with Redis out of reach of the writer, Redis agrees after the delta sweep; what
passes Django by without a new generation, after the full sweep.
"""

import json

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.db.models import Value
from django.db.models.functions import Concat

from django_delayq import sync
from django_delayq.models import Run, Schedule, ScheduleState
from django_delayq.recurrence.point import utcnow
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import wait_until
from tests.app.tasks import CALLS
from tests.faults.harness.oracle import History
from tests.faults.harness.servers import pointing_at
from tests.faults.harness.table import Row
from tests.faults.harness.workers import WorkerProcess
from tests.faults.models import OwnedSchedule
from tests.integration.admin_pages import ADD, LIST, change_url, client_for, fields
from tests.integration.mirroring import absent, mirrored, schedule
from tests.support import DAILY_CRON, OTHER_DAILY_CRON, make_due, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]

NOBODY = "redis://127.0.0.1:1/0"
TABLE = Schedule._meta.db_table


def sql(text, *values):
    with connection.cursor() as cursor:
        cursor.execute(text, values)


def set_cron_by_sql(row, cron):
    sql(f"UPDATE {TABLE} SET cron = %s WHERE id = %s", cron, row.pk)  # noqa: S608


def minute_of_each_hour(off):
    """Return a recurrence with one point an hour, so many minutes from now: none comes due during a test."""
    return f"{(utcnow().minute + off) % 60} * * * *"


def new(name):
    return Schedule(name=name, task="tests.app.tasks.noop", kind="cron", cron=OTHER_DAILY_CRON)


def only(row):
    return Schedule.objects.filter(pk=row.pk)


def set_cron(row, save):
    row.cron = OTHER_DAILY_CRON
    save()


def raw_insert(row):
    """As another program does it: no generation of Redis' is known."""
    names = [field.column for field in Schedule._meta.concrete_fields if field.column != "id"]
    picks = [f"'{row.name} copy'" if name == "name" else "0" if name == "synced_generation" else name for name in names]
    sql(f"INSERT INTO {TABLE} ({', '.join(names)}) SELECT {', '.join(picks)} FROM {TABLE} WHERE id = %s", row.pk)  # noqa: S608


def loaddata(row, folder, **values):
    """Dump the schedule, change the dump, and load it again."""
    path = folder / f"{row.name}.json"
    call_command("dumpdata", "django_delayq.schedule", primary_keys=str(row.pk), output=str(path), verbosity=0)
    dump = json.loads(path.read_text())
    dump[0]["pk"] = values.pop("pk", row.pk)
    dump[0]["fields"].update(values)
    path.write_text(json.dumps(dump))
    call_command("loaddata", str(path), verbosity=0)


def by_form(row, boss):
    answer = boss.post(change_url(row), fields(name=row.name, cron=OTHER_DAILY_CRON, timezone="UTC"))
    assert answer.status_code == 302


def by_action(name, row, boss, **values):
    answer = boss.post(LIST, {"action": name, "_selected_action": [row.pk], "post": "yes", **values})
    assert answer.status_code in (200, 302)


#: name -> (what writes, what is expected: `edit` and `new` must be in Redis as the database has them, `gone` must not)
DELTA = {
    "save": (lambda row, way: set_cron(row, row.save), "edit"),
    "save of a field": (lambda row, way: set_cron(row, lambda: row.save(update_fields=["cron"])), "edit"),
    "update": (lambda row, way: only(row).update(cron=OTHER_DAILY_CRON), "edit"),
    "update by an expression": (
        lambda row, way: only(row).update(cron=Concat(Value(OTHER_DAILY_CRON[:-2]), Value(" *"))), "edit",
    ),
    "bulk_update": (lambda row, way: set_cron(row, lambda: Schedule.objects.bulk_update([row], ["cron"])), "edit"),
    "update_or_create": (
        lambda row, way: Schedule.objects.update_or_create(name=row.name, defaults={"cron": OTHER_DAILY_CRON}), "edit",
    ),
    "bulk_create": (lambda row, way: Schedule.objects.bulk_create([new("created 1"), new("created 2")]), "new"),
    "get_or_create": (
        lambda row, way: Schedule.objects.get_or_create(
            name="got", defaults={"task": "tests.app.tasks.noop", "kind": "cron", "cron": OTHER_DAILY_CRON}
        ),
        "new",
    ),
    "raw UPDATE with a generation": (
        lambda row, way: sql(
            f"UPDATE {TABLE} SET cron = %s, generation = generation + 1 WHERE id = %s", OTHER_DAILY_CRON, row.pk  # noqa: S608
        ),
        "edit",
    ),
    "raw INSERT": (lambda row, way: raw_insert(row), "new"),
    "loaddata": (lambda row, way: loaddata(row, way.folder, cron=OTHER_DAILY_CRON), "edit"),
    "loaddata of a new one": (lambda row, way: loaddata(row, way.folder, pk=None, name="loaded"), "new"),
    "change form": (lambda row, way: by_form(row, way.boss), "edit"),
    "add form": (lambda row, way: way.boss.post(ADD, fields(name="added", timezone="UTC")), "new"),
    "pause in the admin": (lambda row, way: by_action("pause", row, way.boss, apply="1", reason="x"), "gone"),
    "delete in the admin": (lambda row, way: way.boss.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}), "gone"),
    "delete_selected": (lambda row, way: by_action("delete_selected", row, way.boss), "gone"),
    "delete": (lambda row, way: row.delete(), "gone"),
    "delete of a queryset": (lambda row, way: only(row).delete(), "gone"),
    "update to disabled": (lambda row, way: only(row).update(enabled=False), "gone"),
    "move": (lambda row, way: only(row).update(queue="mail"), "moved"),
}  # fmt: skip


class Way:
    """What the writers need."""

    def __init__(self, folder):
        self.folder, self.boss = folder, client_for(superuser=True)


def agrees(broker, row, wanted):
    """Say whether Redis holds of a schedule what is wanted."""
    if wanted == "gone":
        return absent(broker, row)
    if wanted == "moved":
        return absent(broker, row, "default") and mirrored(broker, row)
    return mirrored(broker, row)


def all_agree(broker, wanted):
    """Say whether Redis holds all schedules of the database, and nothing of those that are gone."""
    kept = [row for row in Schedule.objects.all() if row.enabled]
    return (
        all(agrees(broker, row, what) for row, what in wanted)
        and all(mirrored(broker, row) for row in kept)
        and sum(stats.members for stats in broker.read_stats(broker.list_shards())) == len(kept)
        and not Schedule.objects.unmirrored().exists()
    )


@pytest.mark.smoke
def test_f20_all_writes_reach_redis_with_the_delta_sweep_where_the_writer_could_not(broker, tmp_path, note_row):
    way = Way(tmp_path)
    rows = {name: schedule(name) for name in DELTA}
    pks = {name: row.pk for name, row in rows.items()}
    owner = User.objects.create_user("owner")
    common = {"task": "tests.app.tasks.noop", "kind": "cron", "cron": DAILY_CRON}
    sync.sweep_fully(broker)
    owned = [OwnedSchedule.objects.create(name=f"owned {n}", owner=owner, **common) for n in range(2)]
    sync.sweep_delta(broker)  # Django tells of a child class' save under its own name only
    assert all(mirrored(broker, row) for row in owned)
    with WorkerProcess(folder=tmp_path):
        wait_until(
            lambda: broker.read_note("swept"),
            what="the end of the full sweep at its start; the next one comes too late",
        )
        with pointing_at(NOBODY):
            for name, (write, _) in DELTA.items():
                write(rows[name], way)
            User.objects.filter(pk=owner.pk).delete()
            OwnedSchedule.objects.create(name="of another", owner=User.objects.get(), **common)
        wanted = []
        for name, (_, what) in DELTA.items():
            rows[name].pk, rows[name].queue = pks[name], "mail" if what == "moved" else "default"
            wanted.append((rows[name], what))
        took = wait_until(lambda: all_agree(broker, wanted), 30, "Redis to agree with the database")
    points = len(DELTA) + 3
    note_row(Row("F20 delta sweep", points, 0, 0, None, None, None, None, None, took, None))


#: What passes Django and the generations by.
FULL = {
    "raw UPDATE": (lambda row: set_cron_by_sql(row, OTHER_DAILY_CRON), "edit"),
    "raw UPDATE to an earlier point": (lambda row: set_cron_by_sql(row, minute_of_each_hour(+5)), "edit"),
    "plain manager": (lambda row: Schedule._base_manager.filter(pk=row.pk).update(cron=OTHER_DAILY_CRON), "edit"),
    "plain manager, disabled": (lambda row: Schedule._base_manager.filter(pk=row.pk).update(enabled=False), "gone"),
    "plain manager, moved": (lambda row: Schedule._base_manager.filter(pk=row.pk).update(queue="mail"), "moved"),
    "raw DELETE": (
        lambda row: (
            sql(f"DELETE FROM {ScheduleState._meta.db_table} WHERE schedule_id = %s", row.pk),  # noqa: S608
            sql(f"DELETE FROM {TABLE} WHERE id = %s", row.pk),  # noqa: S608
        ),
        "gone",
    ),
}


def test_f20_what_passes_the_generations_by_reaches_redis_with_the_full_sweep(broker, tmp_path, note_row):
    rows = {name: schedule(name) for name in FULL}
    pks = {name: row.pk for name, row in rows.items()}
    sync.sweep_fully(broker)
    for name, (write, _) in FULL.items():
        write(rows[name])
    wanted = []
    for name, (_, what) in FULL.items():
        rows[name].pk, rows[name].queue = pks[name], "mail" if what == "moved" else "default"
        wanted.append((rows[name], what))
    with WorkerProcess(folder=tmp_path, cold=True).ready():  # its first full sweep comes at its start
        took = wait_until(lambda: all_agree(broker, wanted), 30, "Redis to agree with the database")
    assert not Run.objects.filter(schedule_id__in=[row.pk for row, what in wanted if what == "gone"]).exists()
    note_row(Row("F20 full sweep", len(FULL), 0, 0, None, None, None, None, None, took, None))


GONE = {
    "raw DELETE": lambda row: FULL["raw DELETE"][0](row),
    "plain manager, disabled": lambda row: Schedule._base_manager.filter(pk=row.pk).update(enabled=False),
}


@pytest.mark.parametrize("how", GONE)
def test_f20_what_is_due_of_a_schedule_that_went_behind_redis_is_not_started(broker, how):
    """Rule R1: Redis wakes a worker for nothing, before any sweep has told it."""
    row = schedule(task="tests.app.tasks.add", args=[1])
    make_due(broker, row)
    GONE[how](row)
    CALLS.clear()
    worker = Worker(WorkerOptions(queues=("default", "mail"), burst=True))  # one that has swept long ago
    worker.upkeep.begin = lambda **how: None
    worker.run()
    assert CALLS == []
    assert absent(broker, row)


def test_f20_a_recurrence_that_sql_changed_begins_when_it_is_found_and_not_in_the_past(broker, report):
    """It has points since the last run, and none of them was ever promised."""
    row = schedule(cron=DAILY_CRON)
    point = make_due(broker, row)
    run_burst()
    history = History.of(row)
    set_cron_by_sql(row, minute_of_each_hour(-5))
    sync.sweep_fully(broker)
    run_burst()
    assert [run.due_at for run in Run.objects.all()] == [point]
    history.note(row)
    assert len(history.versions) == 2
    assert mirrored(broker, row)
    assert row.effective_from > point
    report("F20 raw SQL without a generation", [history], traced=False)
