"""Lists of the admin that are too long to be counted: their pages, filters, searches and actions."""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq.admin import ScheduleAdmin, paging, runs
from django_delayq.indexes import TRIGRAMS, has_trigrams
from django_delayq.models import Condition, Run, Schedule, ScheduleState, Tag
from tests.integration.admin_pages import LIST, make, texts

pytestmark = pytest.mark.django_db(transaction=True)

RUNS = "/admin/django_delayq/run/"
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
SIZE = 3


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Pages of three, and lists that are long from five on."""
    monkeypatch.setattr(paging, "MOST_COUNTED", 4)
    for admin in (ScheduleAdmin, runs.RunAdmin):
        monkeypatch.setattr(admin, "list_per_page", SIZE)


def names(response) -> list[str]:
    assert response.status_code == 200
    return [getattr(row, "name", "") or row.schedule_name for row in response.context["cl"].result_list]


def flat(pages: list[list[str]]) -> list[str]:
    return [name for page in pages for name in page]


def link(response, rel: str) -> str | None:
    found = re.search(rf'<a rel="{rel}" href="([^"]+)"', response.content.decode())
    return found and found[1].replace("&amp;", "&")


def walk(client, address: str, rel: str = "next") -> list[list[str]]:
    """Return the names of a page and of all that it leads to."""
    pages, base = [], address.partition("?")[0]
    response = client.get(address)
    while True:
        pages.append(names(response))
        query = link(response, rel)
        if query is None:
            return pages
        assert len(pages) < 50, "it leads in a circle"
        response = client.get(base + query)


def make_some(count: int = 8, **values: object) -> list[Schedule]:
    """Make schedules s0 … whose states are of all kinds: two due at one moment, some with none, some without a row."""
    rows = [make(f"s{number}", **values) for number in range(count)]
    for number, row in enumerate(rows):
        due = NOON + timedelta(minutes=number // 2)
        ScheduleState.objects.filter(schedule=row).update(next_due_at=due, last_outcome_at=due, last_status="succeeded")
    ScheduleState.objects.filter(schedule__in=rows[4:6]).update(next_due_at=None, condition=Condition.EXHAUSTED)
    ScheduleState.objects.filter(schedule__in=rows[6:]).delete()
    Schedule._base_manager.filter(pk__in=[row.pk for row in rows[6:]]).update(synced_generation=1)
    return rows


def make_runs(count: int, **values: object) -> None:
    """Make runs of one schedule, two at each moment."""
    schedule = make("of runs")
    for number in range(count):
        origin = ("due", "manual")[number % 2]
        due = NOON + timedelta(minutes=number // 2)
        run = Run.of(schedule, due, **{"status": "succeeded", "origin": origin, **values})
        run.schedule_name = f"r{number}"
        run.save()


IN_ORDER = {
    "": ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"],
    "o=1": ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"],
    "o=-1": ["s7", "s6", "s5", "s4", "s3", "s2", "s1", "s0"],
    "o=4": ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"],
    "o=-4": ["s3", "s2", "s1", "s0", "s5", "s4", "s7", "s6"],  # what has no due point comes last in both directions
    "o=-5.1": ["s5", "s4", "s3", "s2", "s1", "s0", "s7", "s6"],
    "o=99": ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"],
}


@pytest.mark.parametrize(("order", "expected"), IN_ORDER.items())
def test_each_row_is_on_one_page_in_both_directions_in_any_order(boss, order, expected):
    make_some()
    address = f"{LIST}?{order}"
    pages = walk(boss, address)
    assert [len(page) for page in pages] == [3, 3, 2]
    assert flat(pages) == expected
    last = link(boss.get(address), "last")
    back = walk(boss, LIST + last, "prev")
    assert back == [expected[5:], expected[2:5], expected[:3]], "the first page is a whole one"


def test_runs_of_one_moment_are_on_one_page_each(boss):
    make_runs(9)
    expected = [f"r{number}" for number in (8, 7, 6, 5, 4, 3, 2, 1, 0)]
    assert flat(walk(boss, RUNS)) == expected
    assert flat(walk(boss, f"{RUNS}?schedule__id__exact={Schedule.objects.get().pk}")) == expected
    assert walk(boss, f"{RUNS}?before=", "prev") == [expected[6:], expected[3:6], expected[:3]]


@pytest.mark.parametrize("schedules", [4, 8], ids=["few", "many"])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=enabled", [0, 1, 2, 3, 6, 7]),
        ("state=exhausted", [4, 5]),
        ("state=unmirrored", [6, 7]),
        ("outcome=succeeded", [0, 1, 2, 3, 4, 5]),
        ("outcome=none", [6, 7]),
        ("queue=default", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("kind__exact=once", []),
        ("origin=hand&state=enabled&o=-4", [3, 2, 1, 0, 7, 6]),
    ],
)
def test_filters_narrow_every_page(boss, query, expected, schedules):
    make_some(schedules)
    wanted = [f"s{number}" for number in expected if number < schedules]
    if schedules == 4 and "o=-4" in query:
        wanted = ["s3", "s2", "s1", "s0"]
    pages = walk(boss, f"{LIST}?{query}")
    assert flat(pages) == wanted
    assert [len(page) for page in pages] == ([3] * (len(wanted) // 3) + ([len(wanted) % 3] if len(wanted) % 3 else [])
                                             or [0])  # fmt: skip


def test_what_comes_goes_and_moves_between_two_pages_is_neither_repeated_nor_passed_over(boss):
    rows, by_name = make_some(6), f"{LIST}?o=1"
    first = boss.get(by_name)
    make("s00"), rows[1].delete(), Schedule.objects.filter(name="s2").update(name="a")  # s2 ended the first page
    assert names(boss.get(LIST + link(first, "next"))) == ["s3", "s4", "s5"]


def test_a_page_whose_rows_are_gone_is_the_one_before_it(boss):
    make_some(6)
    following = LIST + link(boss.get(f"{LIST}?o=1"), "next")
    Schedule.objects.filter(name__in=["s3", "s4", "s5"]).delete()
    assert names(boss.get(following)) == ["s0", "s1", "s2"]
    before = LIST + "?" + urlencode({"o": 1, "before": "0.1.s1"})
    assert names(boss.get(before)) == ["s0", "s1", "s2"], "a first page is never a stub"


@pytest.mark.parametrize(
    "place", ["x", "0", "0.1", "0.x.s1", "9.1.", "-1.1.", "0." + "9" * 400 + ".s", "1.99999999999999999999.", "²"]
)
def test_an_address_that_names_no_place_is_no_error_page(boss, place):
    make_some(2)
    for name in ("after", "before"):
        assert boss.get(LIST, {name: place}).status_code in (200, 302)
        assert boss.get(LIST, {name: place, "o": "4"}).status_code in (200, 302)
        assert boss.get(RUNS, {name: f"0.1.{place}"}).status_code in (200, 302)


def test_instants_at_the_ends_of_time_are_no_error_page(boss):
    make_runs(2)
    for instant in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01"):
        assert boss.get(RUNS, {"after": f"0.1.{instant}"}).status_code in (200, 302)


def test_a_long_list_is_not_counted_and_a_short_one_is(boss):
    make_some(4)
    page = boss.get(LIST).content.decode()
    assert "4 schedules" in page and "more than" not in page and "Show all" in page
    assert len(names(boss.get(f"{LIST}?all="))) == 4
    make("x")
    response = boss.get(LIST)
    page = response.content.decode()
    assert "more than 4 schedules" in page and "5 schedules" not in page
    assert "Select all that match" in page and "Select all 4" not in page
    with CaptureQueriesContext(connection) as captured:
        boss.get(f"{LIST}?_facets=True")
    counts = [query["sql"] for query in captured if "COUNT(" in query["sql"]]
    assert counts and all("LIMIT" in sql for sql in counts)


def test_what_a_filter_by_states_leaves_is_sorted_if_it_is_not_too_much(boss):
    for name in ("c", "a", "d", "b"):
        ScheduleState.objects.filter(schedule=make(name)).update(failing_streak=1)
    response = boss.get(f"{LIST}?state=failing&o=1")
    assert names(response) == ["a", "b", "c"] and "Too many to be sorted" not in response.content.decode()
    ScheduleState.objects.filter(schedule=make("0")).update(failing_streak=1)
    response = boss.get(f"{LIST}?state=failing")
    assert "Too many to be sorted" in response.content.decode()
    assert flat(walk(boss, f"{LIST}?state=failing")) == ["c", "a", "d", "b", "0"], "as they were made"
    assert flat(walk(boss, f"{LIST}?state=failing&o=1")) == ["0", "a", "b", "c", "d"], (
        "whoever asks for an order gets it"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [("S1", ["s1"]), (" s1 ", ["s1"]), ("tests.APP.tasks.a", ["s5"]), ("1", []), ("%", []), ("noop", [])],
)
def test_a_long_list_is_searched_by_how_names_and_tasks_begin(boss, text, found):
    make_some(5), make("s5", task="tests.app.tasks.add", args=[1])
    assert flat(walk(boss, f"{LIST}?{urlencode({'q': text})}")) == found


def test_many_that_are_paused_are_not_looked_for_by_their_next_due_point(boss):
    make_some(6, enabled=False)
    found = boss.get(f"{LIST}?state=paused").context["cl"]
    assert found.is_capped and found.is_unsorted and found.result_list
    assert not boss.get(f"{LIST}?state=paused&o=4").context["cl"].is_unsorted, "somebody has asked for an order"
    assert not boss.get(LIST).context["cl"].is_unsorted


def test_of_what_is_found_too_often_some_is_listed(boss, monkeypatch):
    monkeypatch.setattr(paging, "MOST_FOUND", 4)
    make_some(8), make("t", queue="mail")
    response = boss.get(f"{LIST}?q=tests")
    assert len(names(response)) == SIZE and "Some are listed" in texts(response)[0]
    assert len(flat(walk(boss, f"{LIST}?q=tests"))) == 4, "not sorted, not all"
    response = boss.get(f"{LIST}?q=tests&queue=mail")
    assert names(response) == ["t"] and texts(response) == []


def test_a_long_ledger_is_searched_by_schedules(boss, monkeypatch):
    make_runs(5)
    other = make("Other")
    Run.of(other, NOON, status="failed").save()
    assert names(boss.get(f"{RUNS}?q=oth")) == ["Other"]
    assert names(boss.get(f"{RUNS}?q=r1")) == [], "names of runs have no index"
    assert len(flat(walk(boss, f"{RUNS}?q=of+runs"))) == 5
    monkeypatch.setattr(paging, "MOST_FOUND", 1)
    response = boss.get(f"{RUNS}?q=O")
    assert names(response) == [] and "More than 1 schedules or their tasks match “O”" in texts(response)[0]
    assert len(flat(walk(boss, f"{RUNS}?q=of+runs"))) == 5


def plan(rows) -> str:
    if connection.vendor != "postgresql":
        return str(rows.explain())
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        try:
            return str(rows.explain())
        finally:
            cursor.execute("RESET enable_seqscan")


def test_names_and_tasks_are_found_by_how_they_begin_by_an_index():
    make("Daily report")
    for text in ("daily", "DAILY R"):
        assert Schedule.objects.filter(name__istartswith=text).exists()
    for field in ("name", "task"):
        found = plan(Schedule.objects.order_by().filter(**{f"{field}__istartswith": "daily"}).values("pk"))
        assert f"delayq_schedule_{field}_prefix" in found, found


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has such an index")
def test_with_an_index_of_trigrams_a_long_list_is_searched_anywhere(boss):
    make_some(5), make("Nightly invoices")
    assert names(boss.get(f"{LIST}?q=Invoice")) == []
    with connection.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
        cursor.execute(
            f"CREATE INDEX {TRIGRAMS} ON django_delayq_schedule "
            "USING gin (UPPER(name) gin_trgm_ops, UPPER(task) gin_trgm_ops)"
        )
    has_trigrams.cache_clear()
    try:
        assert names(boss.get(f"{LIST}?q=Invoice")) == ["Nightly invoices"]
        assert names(boss.get(f"{LIST}?q=ce")) == [], "too short for such an index"
    finally:
        has_trigrams.cache_clear()


def test_the_queues_are_those_of_the_settings_and_those_in_use(boss):
    make("a", queue="mail")
    Schedule._base_manager.update(queue="former")
    page = boss.get(LIST).content.decode()
    assert [queue in page for queue in ("?queue=default", "?queue=mail", "?queue=former")] == [True] * 3
    make("t", task="tests.app.tasks.add", args=[1])
    used = Schedule.objects.used(5)
    assert used == {"queue": ["default", "former"], "task": ["tests.app.tasks.add", "tests.app.tasks.noop"], "tag": []}
    assert Schedule.objects.used(1)["task"] == ["tests.app.tasks.add"], "no more than are asked for"


@pytest.mark.parametrize("page", [LIST, f"{LIST}?state=failing", f"{LIST}?outcome=none", f"{LIST}?q=s", RUNS])
def test_a_page_asks_the_database_seldom(boss, built, page):
    make_some(5), make_runs(5)
    boss.get(page)
    with CaptureQueriesContext(connection) as captured:
        boss.get(page)
    assert len(captured) <= 17, [query["sql"][:100] for query in captured]


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
        (f"{RUNS}?before=", "django_delayq_run_pkey"),
        (f"{RUNS}?origin__exact=job", "delayq_run_one_per_point"),
        (f"{RUNS}failures/", "delayq_run_status"),
        ("/admin/django_delayq/overview/now/", "delayq_run_status"),
        ("/admin/django_delayq/overview/ask/?at=09:00", "delayq_run_status"),
        (f"{RUNS}?status__exact=lost", "delayq_run_status"),
        (f"{RUNS}?origin__exact=backfill", "delayq_run_ordered"),
        (f"{RUNS}?schedule__id__exact=1", "delayq_run_one_per_point"),
        (LIST, "delayq_state_next_due"),
        (f"{LIST}?o=1", "django_delayq_schedule_name_"),
        (f"{LIST}?tag=red", "delayq_tag_name"),
        (f"{LIST}?task=tests.app.tasks.add", r"delayq_schedule_task\b"),
        (f"{LIST}?o=4", "delayq_state_next_due"),
        (f"{LIST}?o=-5", "delayq_state_last_outcome"),
        (f"{LIST}?queue=mail", "delayq_schedule_(by_)?queue"),
        (f"{LIST}?kind__exact=once", "delayq_schedule_kind"),
        (f"{LIST}?state=exhausted", "delayq_state_stopped"),
        (f"{LIST}?state=unmirrored", "delayq_schedule_unmirrored"),
        (f"{LIST}?outcome=lost", "delayq_state_last_status"),
        (f"{LIST}?q=s0", "delayq_schedule_name_prefix"),
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
