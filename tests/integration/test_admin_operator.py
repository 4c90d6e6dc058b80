"""What an operator asks first: is it healthy, what is stuck, what failed and is it new, why did this one not run."""

import json
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_delayq import actions, sync
from django_delayq.models import Control, Run, Schedule
from django_delayq.recurrence.point import utcnow
from tests.app import tasks
from tests.integration.admin_pages import HOSTILE, LIST, RUNS, change_url, client_for, make, make_job, text_of
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

GLANCE = "/admin/django_delayq/overview/"
NOW, ASK, COMING = (f"{GLANCE}{name}/" for name in ("now", "ask", "coming"))
AUDIT = "/admin/django_delayq/auditentry/"
FAILURES = "/admin/django_delayq/run/failures/"
MINUTE = timedelta(minutes=1)
#: The most queries that a page may ask.
MOST = 15


def beat(broker, *queues):
    """Let the test's worker say that it is there."""
    broker.write_heartbeat(broker.read_now_ms(), json.dumps({"queues": queues, "started": 0, "threads": 8}))


@pytest.fixture
def alive(built):
    beat(built, "default", "mail")
    return built


def running(schedule, worker, ago=5 * MINUTE, **values):
    at = utcnow() - ago
    run = Run.build_for(schedule, at, status="running", worker=worker, claimed_at=at, started_at=at, **values)
    run.save()
    return run


def not_run(schedule, at, status="skipped", **values):
    run = Run.build_for(schedule, at, status=status, **values)
    run.save()
    return run


def test_each_page_leads_to_all_others_that_one_may_view(boss, alive):
    pages = (GLANCE, NOW, FAILURES, COMING, ASK, AUDIT)
    for page in pages[:-1]:
        shown = boss.get(page).content.decode().split('class="delayq-bar delayq-places"')[1].split("</nav>")[0]
        assert re.findall(r'href="([^"]+)"', shown) == list(pages)
        assert re.findall(r'href="([^"]+)" aria-current="page"', shown) == [page]
    shown = client_for("view_run").get(FAILURES).content.decode().split("delayq-places")[1].split("</nav>")[0]
    assert re.findall(r'href="([^"]+)"', shown) == [FAILURES]
    assert f'href="{FAILURES}"' in client_for("view_run").get(RUNS).content.decode()


def test_who_may_view_schedules_may_view_the_pages_about_them_and_nobody_else(alive):
    viewer, other = client_for("view_schedule"), client_for("view_run")
    for page in (GLANCE, NOW, COMING, ASK):
        assert [client.get(page).status_code for client in (viewer, other, Client())] == [200, 403, 302]
    assert [GLANCE in client.get("/admin/").content.decode() for client in (viewer, other)] == [True, False]


@pytest.mark.parametrize(
    "page",
    [
        GLANCE, NOW, FAILURES, COMING, f"{ASK}?at=09:00", f"{ASK}?name=s", AUDIT, LIST, f"{LIST}?state=failing", RUNS,
        "/admin/",
    ],
)  # fmt: skip
def test_a_page_asks_the_database_seldom_although_much_is_wrong(boss, alive, page):
    for number in range(12):
        schedule = make(f"s{number}")
        running(schedule, "gone:1", reclaims=2)
        not_run(schedule, utcnow() - MINUTE, "failed", reason=f"Error{number}: x", finished_at=utcnow())
    for queue in ("default", "mail"):
        actions.pause(queue, reason="x", by="ann")
    Schedule._base_manager.filter(name="s3").update(task="app.gone")
    with CaptureQueriesContext(connection) as captured:
        assert boss.get(page).status_code == 200
    assert len(captured) <= MOST, [query["sql"][:200] for query in captured.captured_queries]


def test_one_cause_is_one_problem(boss, broker):
    sync.check_layout(broker)
    make_due(broker, make(cron=DAILY_CRON), timedelta(hours=3))
    make("other", queue="mail")
    sync.sweep_fully(broker)
    page = text_of(boss.get(GLANCE))
    assert page.count("problem ") == 1 and "No worker runs, so nothing starts." in page, page
    beat(broker, "mail")
    page = text_of(boss.get(GLANCE))
    assert "No live worker serves queue default: 1 schedule, run or job of it cannot start." in page
    assert "delayq_worker --queues default" in page and "has been due" not in page, "it is late because of that"
    beat(broker, "default", "mail")
    assert re.search(r"In queue default an entry has been due for \d+ (h|min|d),", text_of(boss.get(GLANCE)))


def test_what_a_person_should_look_at_is_told_with_a_way_there(boss, alive):
    running(make(), "host:1", reclaims=2)
    running(make("once"), "host:1", reclaims=1)
    make_job()
    row = actions.pause("mail", reason="no provider", by="ann")
    Control.objects.update(changed_at=utcnow() - timedelta(hours=3))
    page = boss.get(GLANCE)
    assert f'<a href="{NOW}">1 run keeps losing its worker</a>' in page.content.decode()
    assert "1 failed job" in text_of(page)
    assert (
        f'<a href="/admin/django_delayq/control/{row.pk}/change/">waits: queue mail is paused (no provider) by ann</a>'
        in page.content.decode()
    )
    said = re.compile(r"waits: queue mail is paused \(no provider\) by ann ?, 3h( \d+s)? ago")
    assert said.search(text_of(page))
    shown = client_for("view_schedule").get(GLANCE)
    assert said.search(text_of(shown)) and "/control/" not in shown.content.decode(), "no way there"
    form = boss.get(f"/admin/django_delayq/control/{row.pk}/change/").content.decode()
    assert re.search(r'field-changed_by.*?class="readonly">ann<', form, re.DOTALL), "who it was, on the form itself"


def test_what_seems_stuck_comes_first_and_is_counted(boss, alive):
    name = next(iter(alive.read_workers()))
    well, endless, deaf = make("well"), make("endless", timeout=MINUTE), make("deaf")
    running(well, name, ago=9 * MINUTE)
    running(make("taken"), name, reclaims=2)
    running(endless, name)
    running(make("orphan"), "gone:1")
    make_job(status="running", worker=name, options={"timeout": 60}, started_at=utcnow() - 2 * MINUTE)
    make_job(task="app.gone", status="running", worker=name)
    stopped = running(deaf, name)
    Run.objects.filter(pk=stopped.pk).update(stop_requested_by="ann", stop_requested_at=utcnow() - MINUTE)
    page = boss.get(NOW)
    said = {row["name"]: row["stuck"] for row in page.context["runs"]}
    assert said == {
        "taken": ["lost its worker 2 times"], "endless": ["over its time limit"], "orphan": ["its worker is silent"],
        "deaf": ["does not stop"], "well": [], "tests.app.tasks.add": ["over its time limit"], "app.gone": [],
    }  # fmt: skip
    assert [row["name"] for row in page.context["runs"]][-2:] == ["well", "app.gone"]
    assert "7 are running. 5 seem stuck" in text_of(page) and "no limit" in text_of(page)
    Run.objects.exclude(schedule_id=well.pk).delete()
    assert "1 is running. none seems stuck" in text_of(boss.get(NOW))


def test_without_redis_no_worker_is_called_silent(boss, dead_redis):
    running(make(), "host:1")
    assert "none seems stuck" in text_of(boss.get(NOW))


def test_what_waits_is_told_with_why(boss, alive):
    point = make_due(alive, make(cron=DAILY_CRON), timedelta(hours=2))
    assert point
    tasks.add.using(queue_name="mail").enqueue(1)
    actions.pause("mail", reason="no provider", by="ann")
    actions.limit("default", 3)
    beat(alive, "mail")

    def waits():
        return {row["queue"]: (row["due"], row["jobs"], str(row["why"])) for row in boss.get(NOW).context["waits"]}

    found = waits()
    assert found["default"] == (1, 0, "No live worker serves it. Start one: manage.py delayq_worker")
    beat(alive, "default", "mail")
    assert "3 at a time" in waits()["default"][2]
    actions.limit("default", None)
    assert waits()["default"][2] == "Its workers are busy."
    assert "something waits in 1 queue" in text_of(boss.get(NOW)) or "waits in 2 queues" in text_of(boss.get(NOW))


def test_what_is_new_comes_before_what_failed_last(boss, broker):
    old, new = make("old"), make("new", task="tests.app.tasks.fail")
    for ago in (timedelta(days=3), MINUTE):
        not_run(old, utcnow() - ago, "failed", reason="KeyError: 'a'", finished_at=utcnow() - ago)
    assert "nothing new" in text_of(boss.get(FAILURES))
    at = utcnow() - timedelta(hours=7)
    not_run(new, at, "failed", reason="KeyError: 'vat_rate'", finished_at=at)
    page = boss.get(FAILURES)
    assert [row["group"].is_new for row in page.context["rows"]] == [True, False]
    assert "1 is new It failed for the first time less than a day ago." in text_of(page)
    assert "KeyError: 'vat_rate'" in text_of(page) and "7h" in text_of(page), "the words of the last one"
    Run.objects.all().delete()
    assert "nothing has failed" in text_of(boss.get(FAILURES))


def test_a_name_leads_to_the_answer_and_a_part_of_it_to_a_choice(boss, broker):
    one, other = make("Morning mail"), make("Evening mail")
    why = f"{LIST}{one.pk}/why/?at=10%3A00"
    for name in ("Morning mail", "  Morning mail ", "morning"):
        assert boss.get(ASK, {"name": name, "at": "10:00"}).headers["Location"] == why
    page = boss.get(ASK, {"name": "MAIL", "at": "10:00"})
    assert [name for name, _address in page.context["named"]] == [other.name, one.name]
    assert f'href="{why}"' in page.content.decode()
    assert boss.get(ASK, {"name": "mail"}).context["named"][1][1] == f"{LIST}{one.pk}/why/"
    assert "No schedule has this text in its name." in text_of(boss.get(ASK, {"name": "noon"}))
    assert HOSTILE not in boss.get(ASK, {"name": HOSTILE, "at": HOSTILE}).content.decode()


def test_a_time_alone_names_all_that_did_not_succeed_then(boss, broker):
    at = utcnow().replace(second=0, microsecond=0) - timedelta(hours=1)
    rows = {name: make(name) for name in ("skipped", "stretch", "failed", "well", "later", "open")}
    not_run(rows["skipped"], at, reason="overlap")
    not_run(rows["stretch"], at - timedelta(hours=2), reason="missed", last_due_at=at + MINUTE, points=9)
    not_run(rows["failed"], at + timedelta(seconds=59), "failed", reason="ValueError: x")
    not_run(rows["well"], at, "succeeded")
    not_run(rows["open"], at, "running")
    not_run(rows["later"], at + MINUTE)
    page = boss.get(ASK, {"at": f"{at.isoformat()}"[:16] + "+00:00"})
    assert [row[0] for row in page.context["runs"]] == ["failed", "skipped", "stretch"]
    text = text_of(page)
    assert "overlap: the previous run was still busy" in text and "missed: no worker was free in time" in text
    for _name, address, *_shown in page.context["runs"]:
        assert "skipped" in text_of(boss.get(address)) or "failed" in text_of(boss.get(address))
    assert "No run that was due then has failed" in text_of(boss.get(ASK, {"at": "2020-01-01 10:00"}))
    assert "is not a time" in text_of(boss.get(ASK, {"at": "noon"}))


def test_the_id_of_a_job_leads_to_it_and_jobs_are_among_what_did_not_succeed(boss, broker):
    at = utcnow().replace(second=30, microsecond=0) - timedelta(hours=1)
    job = make_job(at=at)
    there = f"/admin/django_delayq/run/{job.pk}/change/"
    assert boss.get(ASK, {"name": job.result_id}).headers["Location"] == there
    assert "No schedule has this text in its name." in text_of(
        client_for("view_schedule").get(ASK, {"name": job.result_id})
    )
    asked = {"at": f"{at.isoformat()}"[:16] + "+00:00"}
    assert [row[:2] for row in boss.get(ASK, asked).context["runs"]] == [("tests.app.tasks.add", there)]


def test_asking_shows_to_each_what_he_may_view(broker):
    at = utcnow().replace(second=0, microsecond=0) - timedelta(hours=1)
    not_run(make("secret run"), at)
    asked = {"at": f"{at.isoformat()}"[:16] + "+00:00"}
    assert "secret run" not in text_of(client_for("view_schedule").get(ASK, asked))
    assert "secret run" in text_of(client_for("view_schedule", "view_run").get(ASK, asked))


def why(client, schedule, at: str = "", status: int = 200) -> str:
    reply = client.get(f"{LIST}{schedule.pk}/why/", {"at": at} if at else {})
    assert reply.status_code == status
    return reply.content.decode()


def test_it_says_how_it_stands_and_why_a_point_ran_with_links_both_ways(boss, broker):
    schedule = make(cron=DAILY_CRON, timezone="Asia/Kolkata")
    point = make_due(broker, schedule)
    run_burst()
    run = Run.objects.get()
    assert "Its newest run:" in why(boss, schedule)
    at = f"{point:%Y-%m-%d %H:%M}+00:00"
    assert "Runs of this time" not in why(client_for("view_schedule"), schedule, at)
    assert "Runs of this time" in why(client_for("view_schedule", "view_run"), schedule, at)
    assert "The schedule did not exist then" in why(boss, schedule, "2020-01-01 09:00")
    page = why(boss, schedule, at)
    assert "succeeded." in page and "1 attempt, latency" in page
    address = reverse("admin:django_delayq_run_change", args=[run.pk])
    assert address in page and f"{LIST}{schedule.pk}/why/" in boss.get(change_url(schedule)).content.decode()
    link = re.search(r'href="(/admin/django_delayq/schedule/\d+/why/[^"]*)"', boss.get(address).content.decode())
    assert link is not None and "1 attempt, latency" in boss.get(link[1]).content.decode()


def test_what_is_no_time_is_refused_as_it_was_typed(boss, broker):
    page = why(boss, make(), HOSTILE)
    assert "is not a time. Write 2026-11-21 09:00" in page and HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_who_may_view_may_ask_but_is_not_told_where_redis_is(boss, dead_redis):
    schedule, viewer = make(), client_for("view_schedule")
    assert "127.0.0.1" not in why(viewer, schedule) and "Redis does not answer" in why(viewer, schedule)
    assert why(client_for("view_run"), schedule, status=403)
    assert boss.get(f"{LIST}{2**70}/why/").status_code == boss.get(f"{LIST}9999/why/").status_code == 404
