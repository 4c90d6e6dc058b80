"""Lists of the admin that are too long to be counted: their pages, filters, searches and actions."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq.admin import RunAdmin, ScheduleAdmin, base, run_pages
from django_delayq.models import Condition, Run, Schedule, ScheduleState, Tag
from tests.integration.admin_pages import LIST, RUNS, make, texts

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
SIZE = 3


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Pages of three, and lists that are long from five on."""
    monkeypatch.setattr(base, "MOST_COUNTED", 4)
    for admin in (ScheduleAdmin, RunAdmin):
        monkeypatch.setattr(admin, "list_per_page", SIZE)


def names(response) -> list[str]:
    assert response.status_code == 200
    return [getattr(row, "name", "") or row.schedule_name for row in response.context["cl"].result_list]


def make_some(count: int = 8, **values: object) -> list[Schedule]:
    """Make schedules s0 … whose states are of all kinds: two due at one moment, some with none, some without a row."""
    rows = [make(f"s{number}", **values) for number in range(count)]
    for number, row in enumerate(rows):
        due = NOON + timedelta(minutes=number // 2)
        ScheduleState.objects.filter(schedule=row).update(next_due_at=due, last_outcome_at=due, last_status="succeeded")
    ScheduleState.objects.filter(schedule__in=rows[4:6]).update(next_due_at=None, condition=Condition.FINISHED)
    ScheduleState.objects.filter(schedule__in=rows[6:]).delete()
    Schedule._base_manager.filter(pk__in=[row.pk for row in rows[6:]]).update(synced_generation=1)
    return rows


def make_runs(count: int, **values: object) -> None:
    """Make runs of one schedule, two at each moment."""
    schedule = make("of runs")
    for number in range(count):
        origin = ("due", "manual")[number % 2]
        due = NOON + timedelta(minutes=number // 2)
        run = Run.build_for(schedule, due, **{"status": "succeeded", "origin": origin, **values})
        run.schedule_name = f"r{number}"
        run.save()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "s0 s1 s2 s3 s4 s5 s6 s7"),
        ("o=-1", "s7 s6 s5 s4 s3 s2 s1 s0"),
        ("state=finished", "s4 s5"),
        ("queue=default&q=s1", "s1"),
        ("q=APP.tasks", "s0 s1 s2 s3 s4 s5 s6 s7"),
        ("q=%25", ""),
        ("q=_1", ""),
    ],
)
def test_each_row_is_on_one_page_in_the_order_that_is_asked_for(boss, monkeypatch, query, expected):
    monkeypatch.setattr(base, "MOST_COUNTED", 8)
    make_some()
    pages = [boss.get(f"{LIST}?{query}&p={number + 1}") for number in range(3)]
    found = [name for page in pages if page.status_code == 200 for name in names(page)]
    assert found[: len(expected.split())] == expected.split()
    assert pages[0].context["cl"].result_count == len(expected.split())


def test_a_long_list_is_searched_and_sorted_by_name_and_narrowed_by_key(boss):
    rows = make_some()
    assert names(boss.get(f"{LIST}?q=s1")) == ["s1"] and names(boss.get(f"{LIST}?q=1")) == []
    assert re.findall(r"sortable column-(\w+)", boss.get(LIST).content.decode()) == ["name_column"]
    named = [boss.get(f"/admin/django_delayq/overview/ask/?name={part}") for part in ("s", "1")]
    assert [len(reply.context["named"]) for reply in named] == [8, 0]
    assert names(boss.get(f"{LIST}?o=-4")) == ["s7", "s6", "s5"], "an order that is not offered is ignored"
    Schedule._base_manager.filter(pk=rows[4].pk).update(name="z")
    assert names(boss.get(f"{LIST}?state=finished")) == ["z", "s5"]


def test_a_long_list_is_counted_up_to_a_number_and_a_short_one_to_its_end(boss):
    make_some(4)
    page = boss.get(LIST).content.decode()
    assert "4 schedules" in page and "more than" not in page and "Show all" in page
    assert len(names(boss.get(f"{LIST}?all="))) == 4
    make("x")
    with CaptureQueriesContext(connection) as captured:
        page = boss.get(LIST).content.decode()
    assert "There are more than 4 schedules" in page and "5 schedules" not in page
    assert "Select all that match" in page and "Select all 4" not in page
    counts = [query["sql"] for query in captured if "COUNT(" in query["sql"]]
    assert counts and all("LIMIT" in sql for sql in counts)
    assert names(boss.get(f"{LIST}?p=2")) == ["s3"], "no page lies behind what is counted"
    assert boss.get(f"{LIST}?p=3").status_code == 302


def test_a_long_ledger_is_searched_by_schedules(boss, monkeypatch):
    make_runs(5)
    other = make("Other")
    Run.build_for(other, NOON, status="failed").save()
    assert names(boss.get(RUNS)) == ["Other", "r4", "r3"]
    assert names(boss.get(f"{RUNS}?q=Oth")) == ["Other"]
    assert names(boss.get(f"{RUNS}?q=r1")) == [], "only schedules are looked through"
    assert boss.get(f"{RUNS}?q=of+runs").context["cl"].paginator.is_capped
    assert names(boss.get(f"{RUNS}?q=%25")) == []
    monkeypatch.setattr(run_pages, "MOST_FOUND", 0)
    response = boss.get(f"{RUNS}?q=O")
    assert names(response) == [] and "More than 0 schedules match “O”: not listed." in texts(response)[0]


def test_the_queues_are_those_in_use(boss):
    make("a", queue="mail")
    Schedule._base_manager.update(queue="former")
    assert "?queue=former" in boss.get(LIST).content.decode()
    make("t", task="tests.app.tasks.add", args=[1])
    used = Schedule.objects.read_used_names(5)
    assert used == {"queue": ["default", "former"], "task": ["tests.app.tasks.add", "tests.app.tasks.noop"], "tag": []}
    assert Schedule.objects.read_used_names(1)["task"] == ["tests.app.tasks.add"], "no more than are asked for"


@pytest.mark.skipif(connection.vendor != "sqlite", reason="asks SQLite, which takes a partial index only by its words")
@pytest.mark.parametrize(
    ("page", "index"),
    [
        (f"{RUNS}?status__exact=lost", "delayq_run_status"),
        (f"{RUNS}?origin__exact=backfill", "delayq_run_ordered"),
        (f"{RUNS}failures/", "delayq_run_status"),
        ("/admin/django_delayq/overview/now/", "delayq_run_status"),
    ],
)
def test_a_page_of_runs_takes_a_partial_index(boss, page, index):
    make_runs(2)
    with CaptureQueriesContext(connection) as captured:
        assert boss.get(page).status_code == 200
    plans = []
    with connection.cursor() as cursor:
        for query in captured.captured_queries:
            if 'FROM "django_delayq_run"' in query["sql"]:
                cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
                plans += [line[-1] for line in cursor.fetchall()]
    assert any(index in plan for plan in plans) and not any("SCAN django_delayq_run" in plan for plan in plans), plans


@pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL how it finds rows")
@pytest.mark.parametrize(
    ("page", "index"),
    [
        (RUNS, "django_delayq_run_pkey"),
        (f"{RUNS}?origin__exact=job", "delayq_run_one_per_point"),
        (f"{RUNS}failures/", "delayq_run_status"),
        ("/admin/django_delayq/overview/now/", "delayq_run_status"),
        ("/admin/django_delayq/overview/ask/?at=09:00", "delayq_run_status"),
        (f"{RUNS}?status__exact=lost", "delayq_run_status"),
        (f"{RUNS}?origin__exact=backfill", "delayq_run_ordered"),
        (f"{RUNS}?schedule__id__exact=1", "delayq_run_one_per_point"),
        (f"{RUNS}?q=of+runs", "delayq_run_one_per_point"),
        (LIST, "django_delayq_schedule_name_"),
        (f"{LIST}?tag=red", "delayq_tag_name"),
        (f"{LIST}?task=tests.app.tasks.add", r"delayq_schedule_task\b"),
        (f"{LIST}?queue=mail", "delayq_schedule_(by_)?queue"),
        (f"{LIST}?kind__exact=once", "delayq_schedule_kind"),
        (f"{LIST}?state=finished", "delayq_state_stopped"),
        (f"{LIST}?origin=gone", "delayq_schedule_gone"),
        (f"{LIST}?outcome=lost", "delayq_state_last_status"),
    ],
)
def test_a_page_finds_its_rows_by_an_index(boss, page, index):
    make_some(8), make_runs(8, status="failed")
    owner = Schedule.objects.first()
    Tag.objects.bulk_create(Tag(name=f"t{number}", schedule=owner) for number in range(500))
    with CaptureQueriesContext(connection) as captured:
        assert boss.get(page).status_code == 200
    about = r'FROM "django_delayq_(run|schedule)"'
    asked = [
        query["sql"] for query in captured if re.search(about, query["sql"]) and "WITH RECURSIVE" not in query["sql"]
    ]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("SET enable_sort = off")
        try:
            plans = []
            for sql in asked:
                cursor.execute(f"EXPLAIN {sql}")
                plans.append("\n".join(line for (line,) in cursor.fetchall()))
        finally:
            cursor.execute("RESET enable_seqscan")
            cursor.execute("RESET enable_sort")
    assert any(re.search(index, plan) for plan in plans), plans
    assert not [plan for plan in plans if "Seq Scan on django_delayq_run" in plan]
