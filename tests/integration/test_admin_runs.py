"""The ledger in the admin: read-only, readable, and quick however long it is."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_delayq.calls.attempt import MOST_TRACE, NOT_ENDED
from django_delayq.models import Run, Schedule
from django_delayq.recurrence.point import utcnow
from tests.integration.admin_pages import HOSTILE, RUNS, client_for, make, texts

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.fixture
def viewer() -> Client:
    return client_for("view_run", "view_schedule")


def make_run(number: int = 0, **values: object) -> Run:
    due = NOON + timedelta(seconds=number)
    return Run.objects.create(
        **{
            "schedule_id": 7, "schedule_name": f"run {number}", "task": "shop.tasks.charge", "queue": "default",
            "generation": 1, "due_at": due, "status": "succeeded", "attempt": 1, "worker": "web-1:4711",
            "claimed_at": due + timedelta(milliseconds=12), "started_at": due + timedelta(milliseconds=13),
            "finished_at": due + timedelta(milliseconds=2013), **values,
        }
    )  # fmt: skip


def page_of(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def test_the_list_survives_deleted_schedules_and_asks_little(viewer):
    for number in range(60):
        make_run(number, schedule_id=number + 1000)
    with CaptureQueriesContext(connection) as captured:
        page = page_of(viewer, RUNS)
    assert "run 59" in page and "12 ms" in page and "2.00 s" in page
    about_runs = [query["sql"] for query in captured if "django_delayq_run" in query["sql"]]
    assert len(about_runs) == 2, "counted, read"
    assert not any("django_delayq_schedule" in sql or '"attempts"' in sql for sql in about_runs)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status__exact=failed", {"bad"}),
        ("origin__exact=manual", {"ordered"}),
        ("schedule__id__exact=8", {"bad"}),
        ("origin__exact=due", {"bad", "fresh"}),
        ("q=order", {"ordered"}),
    ],
)
def test_filters_and_search(viewer, query, found):
    make_run(1, schedule_name="bad", status="failed", schedule_id=8)
    make_run(2, schedule_name="ordered", origin="manual")
    make_run(3, schedule_name="fresh", due_at=datetime.now(UTC))
    response = viewer.get(f"{RUNS}?{query}")
    assert {run.schedule_name for run in response.context["cl"].result_list} == found


@pytest.mark.parametrize("value", ["x", "1" * 400, "-1", "1'"])
def test_a_nonsensical_schedule_in_the_address_has_no_runs(viewer, value):
    make_run()
    assert not viewer.get(RUNS, {"schedule__id__exact": value}).context["cl"].result_list


def test_the_filter_names_the_schedule_also_a_deleted_one(viewer):
    make_run(schedule_name="Long gone")
    page = page_of(viewer, f"{RUNS}?schedule__id__exact=7")
    assert "By schedule" in page and re.search(r"<a[^>]*>\s*Long gone\s*</a>", page[page.index("By schedule") :])
    assert "By schedule" not in page_of(viewer, RUNS)


def test_the_detail_tells_everything_and_links_to_the_schedule(viewer):
    schedule = Schedule.objects.create(name="Charge", task="tests.app.tasks.noop", kind="cron", cron="0 9 * * *")
    run = make_run(schedule_id=schedule.pk, schedule_name="Charge", result={"b": [1, "ü"]}, reclaims=2, attempt=3)
    page = page_of(viewer, f"{RUNS}{run.pk}/change/")
    times = ("12:00:00.012", "12:00:02.013", "12 ms", "2.00 s")
    for text in (*times, "web-1:4711", "ü", f"schedule/{schedule.pk}/change/"):
        assert text in page, text


def test_the_detail_of_a_skipped_stretch_of_a_deleted_schedule(viewer):
    run = make_run(
        schedule_name="Gone", status="skipped", reason="missed", points=412, last_due_at=NOON + timedelta(hours=3),
        started_at=None,
    )  # fmt: skip
    page = page_of(viewer, f"{RUNS}{run.pk}/change/")
    for text in ("Gone (deleted)", "412", "15:00:00", "missed"):
        assert text in page, text
    unknown = make_run(1, status="skipped", reason="edited", points=0, last_due_at=NOON)
    assert "an unknown number" in page_of(viewer, f"{RUNS}{unknown.pk}/change/")


def test_hostile_and_secret_texts_are_escaped_and_hidden_and_long_ones_cut(viewer):
    secret, long = "password=hunter2hunter2", "x" * 300_000
    bad = attempt(1, worker=HOSTILE, title=f"{HOSTILE} {secret}", trace=f"{HOSTILE}\x1b {secret} {long}"[:MOST_TRACE])
    half = {} if connection.vendor == "postgresql" else {"half": "\ud800"}  # PostgreSQL refuses to store it
    run = make_run(
        schedule_name=HOSTILE, task=HOSTILE, reason=HOSTILE, worker=HOSTILE, error=f"{HOSTILE}\n{long}\nthe end",
        result={"key": HOSTILE, **half}, status="failed",
        attempts=[bad, {"number": 2, "started": 10**30, "worker": HOSTILE}, "garbage"],
    )  # fmt: skip
    for url in (RUNS, f"{RUNS}{run.pk}/change/", f"{RUNS}?schedule__id__exact=7"):
        page = page_of(viewer, url)
        assert HOSTILE not in page and "&lt;script&gt;" in page
    page = page_of(viewer, f"{RUNS}{run.pk}/change/")
    assert "characters left out" in page and "the end" in page
    assert "hunter2" not in page and "\x1b" not in page
    assert len(page) < 200_000


def attempt(number: int, **values: object) -> dict[str, object]:
    began = int(NOON.timestamp() * 1000) - 60_000 + number * 1000
    return {
        "number": number, "started": began, "finished": began + 250, "worker": "web-1:1", "title": "", "trace": "",
        **values,
    }  # fmt: skip


def test_all_attempts_are_shown_with_times_workers_and_tracebacks(viewer):
    run = make_run(
        attempt=2, result="done",
        attempts=[
            attempt(1, title="ValueError: no luck", trace="Traceback\nValueError: no luck"),
            attempt(2, finished=None, worker="web-9:9", title=NOT_ENDED),
        ],
    )  # fmt: skip
    page = page_of(viewer, f"{RUNS}{run.pk}/change/")
    table = page[page.index("delayq-attempts") :].partition("</table>")[0]
    for text in ("11:59:01.000", "11:59:01.250", "250 ms", "web-1:1", "ValueError: no luck", "web-9:9", "did not end"):
        assert text in table, text
    assert "12:00:00.013" in table and "2.00 s" in table and "web-1:4711" in table, "the last one, of the row"
    assert table.count("<details>") == 1 and table.count("<tr>") == 4
    again = make_run(2, status="queued", started_at=None, attempts=[attempt(1, title="KeyError: 'x'")])
    assert "delayq-attempts" in page_of(viewer, f"{RUNS}{again.pk}/change/"), "while it waits to be tried again"
    page = page_of(viewer, f"{RUNS}{make_run(1).pk}/change/")
    assert "delayq-attempts" not in page and "Attempts" not in page, "there was one"


def test_nobody_can_write_the_ledger(boss):
    run = make_run()
    assert boss.get(f"{RUNS}add/").status_code == 403
    assert boss.post(f"{RUNS}{run.pk}/change/", {"status": "failed"}).status_code == 403
    refused = boss.post(f"{RUNS}{run.pk}/delete/", follow=True)
    assert texts(refused) == ["1 run does not change: its state does not permit this."]
    assert Run.objects.get().status == "succeeded"


def test_a_failed_run_can_be_run_again(boss, viewer):
    row = make("again")
    run = Run.build_for(row, utcnow(), status="failed")
    run.save()
    page = boss.get(f"{RUNS}{run.pk}/change/").content.decode()
    again = reverse("admin:django_delayq_schedule_run_now", args=[row.pk])
    assert again in page
    assert again not in viewer.get(f"{RUNS}{run.pk}/change/").content.decode()
    row.delete()
    assert again not in boss.get(f"{RUNS}{run.pk}/change/").content.decode()
