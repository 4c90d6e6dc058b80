"""Writes of many schedules at once: nobody waits for their mirroring, and the workers do not do it several times."""

import re
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import sync
from django_delayq.index import Broker
from django_delayq.models import Schedule, Tombstone
from django_delayq.sync import after_commit, pages, sweep, write
from tests.integration.mirroring import absent, at_once, lose, mirrored, schedule
from tests.support import OTHER_DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def small(monkeypatch):
    """Have pages of two, two of them in a sweep."""
    for module in (sync, pages, sweep, write):
        monkeypatch.setattr(module, "PAGE", 2)
    for module in (pages, sweep, write):
        monkeypatch.setattr(module, "PAGES", 2)


def make(count):
    task = {"task": "tests.app.tasks.noop", "kind": "cron", "cron": "0 0 * * *"}
    return Schedule.objects.bulk_create([Schedule(name=f"s{n}", **task) for n in range(count)])


# -- deletions


def test_a_deletion_is_followed_once_however_many_were_deleted(built, monkeypatch):
    make(5)
    calls = []
    monkeypatch.setattr(after_commit, "remove_tombstones", calls.append)
    Schedule.objects.all().delete()
    assert len(calls) == 1


def test_a_deletion_past_the_manager_is_mirrored(built):
    row = schedule()
    Schedule._base_manager.filter(pk=row.pk).delete()
    assert absent(built, row)


def test_a_queryset_that_deletes_twice_notes_only_what_it_has_deleted(built, monkeypatch):
    monkeypatch.setattr(after_commit, "MOST_AT_ONCE", 0)
    every = Schedule.objects.all()
    for name in ("a", "b"):
        schedule(name)
        every.delete()
    assert Tombstone.objects.count() == 2


def test_deletions_are_followed_page_after_page_and_what_is_leased_asks_for_no_more(built, small, monkeypatch):
    rows = make(7)
    make_due(built, rows[-1])  # Django deletes from the last to the first
    assert len(built.claim(built.list_shards()[0], limit=1, lease_ms=30_000, request=1).entries) == 1
    monkeypatch.setattr(after_commit, "MOST_AT_ONCE", 0)
    Schedule.objects.all().delete()
    assert {stone.member for stone in Tombstone.objects.all()} == {f"s{row.pk}" for row in rows}
    assert not any(absent(built, row) for row in rows)
    assert sync.sweep_delta(built) == 3  # of two pages of two
    assert sync.sweep_delta(built) == 3
    assert sync.sweep_delta(built) == 0, "asking at once again would not end"
    assert all(absent(built, row) for row in rows[:-1])
    assert [stone.member for stone in Tombstone.objects.all()] == [f"s{rows[-1].pk}"]


# -- edits


def test_edits_are_mirrored_several_pages_at_a_time(built, small):
    rows = make(7)
    for row in rows:
        lose(built, row)
    Schedule._base_manager.update(synced_generation=0)
    assert sync.sweep_delta(built) == 4
    assert sync.sweep_delta(built) == 3
    assert all(mirrored(built, row) for row in rows)
    assert sync.sweep_delta(built) == 0


def test_a_page_that_another_worker_has_mirrored_meanwhile_is_not_mirrored_again(built, small, monkeypatch):
    make(4)
    Schedule._base_manager.update(synced_generation=0)

    def other_first(pks):
        sync.sync(built, pks)
        return pages.shuffle_pages(pks)

    monkeypatch.setattr(sweep, "shuffle_pages", other_first)
    written = []
    monkeypatch.setattr(sweep, "sync", lambda broker, pks: written.extend(pks) or [])
    assert sync.sweep_delta(built) == 4, "there may be more, whoever did these"
    assert not written


def test_several_workers_at_once_lose_nothing(built, small, monkeypatch):
    monkeypatch.setattr(after_commit, "MOST_AT_ONCE", 0)
    rows = make(60)
    gone = rows[40:]
    while sync.sweep_delta(built):
        pass
    Schedule.objects.filter(pk__in=[row.pk for row in rows[:40]]).update(cron=OTHER_DAILY_CRON)
    Schedule.objects.filter(pk__in=[row.pk for row in gone]).delete()
    assert Schedule.objects.unmirrored().count() == 40

    def work():
        own = Broker(timeout_seconds=5)
        while sync.sweep_delta(own):
            pass

    at_once(work, work, work)
    assert all(mirrored(built, row) for row in rows[:40])
    assert all(absent(built, row) for row in gone)
    assert not Tombstone.objects.exists()
    assert not Schedule.objects.unmirrored().exists()
    assert sync.sweep_fully(built).lines == []


# -- by SQL, as docs/size.md says


def documented(statement):
    """Return the statements in docs/size.md that begin so, for all schedules, in a form that SQLite takes too."""
    chapter = Path("docs/size.md").read_text("utf-8").split("\n## Many written at once\n")[1].split("\n## ")[0]
    (block,) = (sql for sql in re.findall(r"```sql\n(.*?)```", chapter, re.DOTALL) if sql.startswith(statement))
    block = block.replace("…", "true")
    if connection.vendor == "sqlite":
        block = block.replace(" FOR UPDATE", "").replace("now()", "CURRENT_TIMESTAMP")
    return [sql for sql in block.split(";\n") if sql not in {"", "BEGIN", "COMMIT"}]


def test_an_edit_by_sql_that_marks_its_rows_is_followed_by_the_next_delta_sweep(built):
    row = schedule()
    before = Schedule.objects.get()
    with connection.cursor() as cursor:
        for sql in documented("UPDATE"):
            cursor.execute(sql)
    sync.sweep_delta(built)
    assert Schedule.objects.get().effective_from > before.effective_from
    assert mirrored(built, row)


def test_a_deletion_by_sql_with_tombstones_is_followed_by_the_next_delta_sweep(built):
    row = schedule()
    with transaction.atomic(), connection.cursor() as cursor:
        for sql in documented("BEGIN"):
            cursor.execute(sql)
    assert not absent(built, row)
    assert sync.sweep_delta(built) == 1
    assert absent(built, row)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL would rather read the table")
def test_a_sweep_that_finds_nothing_reads_no_table(built):
    make(300)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_delayq_schedule")
    with CaptureQueriesContext(connection) as captured:
        assert sync.sweep_delta(built) == 0
    (sql,) = (query["sql"] for query in captured if re.search("synced_generation", query["sql"]))
    with connection.cursor() as cursor:
        cursor.execute("SET enable_sort = off")  # of so few
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("RESET enable_sort")
    assert "delayq_schedule_unmirrored" in plan, plan
