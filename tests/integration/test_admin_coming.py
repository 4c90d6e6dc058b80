"""Coming up: the map of the next hours, and the next runs."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.admin import coming_page as pages
from django_delayq.models import Condition, Schedule, ScheduleState
from django_delayq.monitoring import coming
from tests.integration.admin_pages import HOSTILE, change_url, make

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/django_delayq/overview/coming/"
NOW = datetime(2026, 5, 4, 12, 20, 30, tzinfo=UTC)  # a Monday


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The pages believe that it is NOW."""
    monkeypatch.setattr(pages, "utcnow", lambda: NOW)


def old(name: str, **values: object) -> Schedule:
    """Return a schedule that has been there for a month."""
    row = make(name, **{"timezone": "UTC", **values})
    month_ago = NOW - timedelta(days=30)
    Schedule._base_manager.filter(pk=row.pk).update(created_at=month_ago, effective_from=month_ago)
    row.refresh_from_db()
    return row


def crowd(number: int, cron: str = "0 0 * * *", **values: object) -> list[Schedule]:
    return [old(f"{values.get('queue', 'd')}{each:03}", cron=cron, **values) for each in range(number)]


def shown(client: Client, **query: str) -> str:
    response = client.get(PAGE, query)
    assert response.status_code == 200
    return unescape(response.content.decode())


def heat(page: str) -> dict[str, list[str]]:
    """Return the texts of the map's cells by the name of their row."""
    body = re.search(r'<table class="delayq-heat">.*?</table>', page, re.S)
    assert body is not None
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', body[0])
    return {name: [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", row)] for name, row in rows}


def test_the_map_has_a_row_for_each_day_of_all_queues_or_of_one(boss):
    old("off", enabled=False, cron="* * * * *")
    assert "Nothing is due in this time." in shown(boss)
    crowd(12), crowd(5, "30 14 * * *", queue="mail"), old("busy", cron="*/10 * * * *")
    ended = old("ended", cron="* * * * *")
    ScheduleState.objects.filter(schedule=ended).update(condition=Condition.FINISHED)
    page = shown(boss)
    rows = heat(page)
    assert next(iter(rows)) == "Mon 2026-05-04" and len(rows) == 8
    assert rows["Mon 2026-05-04"] == [""] * 12 + ["4", "6", "11", *["6"] * 9], "what has passed of today is not there"
    assert rows["Tue 2026-05-05"] == ["18", *["6"] * 13, "11", *["6"] * 9]
    assert rows["Mon 2026-05-11"] == ["18", *["6"] * 11] + [""] * 12
    assert 'title="18 from Tue 00:00 on"' in page and "delayq-heat-6" in page and "stimated" not in page
    assert heat(shown(boss, queue="mail"))["Tue 2026-05-05"] == [""] * 14 + ["5"] + [""] * 9
    assert '<a href="?queue=mail">mail</a>' in page
    assert f'href="{PAGE}"' in boss.get("/admin/django_delayq/overview/").content.decode()


def test_numbers_are_those_of_the_clock_of_the_project(boss):
    old("nine", cron="0 9 * * *", timezone="Asia/Kolkata")
    with timezone.override("Asia/Kolkata"):
        page = shown(boss)
    assert "Times of Asia/Kolkata." in page
    assert heat(page)["Tue 2026-05-05"] == [""] * 9 + ["1"] + [""] * 14


def test_a_hostile_queue_stays_a_text(boss):
    Schedule._base_manager.filter(pk=old("s").pk).update(queue=HOSTILE)
    for query in ({}, {"queue": HOSTILE}):
        page = boss.get(PAGE, query).content.decode()
        assert HOSTILE not in page and "&lt;script&gt;" in page


def test_the_next_twenty_runs_are_named(boss):
    rows = {
        "busy": old("busy", cron="*/10 * * * *"), "once": old("once", cron="25 12 * * *", max_runs=1, queue="mail"),
        "late": old("late", cron="0 18 * * *"), "off": old("off", cron="22 12 * * *", enabled=False),
        "bad": old("bad", cron="21 12 * * *"), "gone": old("gone", cron="21 12 * * *", timezone="Asia/Tokyo"),
    }  # fmt: skip
    for row in rows.values():
        ScheduleState.objects.update_or_create(schedule=row, defaults={"next_due_at": NOW + timedelta(minutes=1)})
    Schedule._base_manager.filter(name="bad").update(cron="not a cron")
    ScheduleState.objects.filter(schedule=rows["gone"]).update(condition=Condition.BROKEN)
    page = shown(boss)
    runs = re.findall(r'title="([^"]+)">[^<]*</time> <a href="(.*?)">(.*?)</a>.*?">(.*?)</span>', page)
    assert [name for _, _, name, _ in runs] == ["once", *["busy"] * 19]
    assert runs[0][1:] == (change_url(rows["once"]), "once", "mail") and "12:25:00" in runs[0][0]


def test_a_hostile_name_and_queue_stay_texts(boss):
    Schedule._base_manager.filter(pk=old(HOSTILE).pk).update(queue=HOSTILE)
    page = boss.get(PAGE).content.decode()
    assert HOSTILE not in page and "&lt;script&gt;" in page


def test_of_many_schedules_a_sample_is_looked_at_and_the_page_says_so(boss, monkeypatch):
    monkeypatch.setattr(coming, "MOST_READ", 50)
    crowd(200)
    page = shown(boss)
    assert "Estimated from 40 of about 200 schedules." in page
    assert heat(page)["Tue 2026-05-05"][0] == "200"
    Schedule._base_manager.filter(name__lt="d160").update(enabled=False)
    assert "stimated" not in shown(boss), "few of them are enabled: all of those are read"


def test_a_sample_asks_the_database_seldom(boss, monkeypatch):
    monkeypatch.setattr(coming, "MOST_READ", 2)
    crowd(30)
    shown(boss)
    with CaptureQueriesContext(connection) as captured:
        shown(boss)
    assert len(captured) <= 10, [each["sql"][:100] for each in captured]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL how it finds rows")
def test_a_sample_is_found_by_indexes(boss, monkeypatch):
    monkeypatch.setattr(coming, "MOST_READ", 10)
    crowd(50)
    with CaptureQueriesContext(connection) as captured:
        shown(boss)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute("SET enable_seqscan = off")
        try:
            asked = [query["sql"] for query in captured if "django_delayq_schedule" in query["sql"]]
            assert asked
            for sql in asked:
                cursor.execute(f"EXPLAIN {sql}")
                plan = "\n".join(line for (line,) in cursor.fetchall())
                assert "Seq Scan on django_delayq" not in plan, sql
        finally:
            cursor.execute("RESET enable_seqscan")
