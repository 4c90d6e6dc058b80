"""At a glance and the line above the list and beside a schedule: how the whole thing stands; and on the first page."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from django_delayq import ledger
from django_delayq.index import MinuteCounts, keys, web
from django_delayq.index.counters import Counts
from django_delayq.index.web import forget_broker
from django_delayq.models import ScheduleState
from django_delayq.monitoring import minutes
from django_delayq.recurrence.point import utcnow
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.integration.admin_pages import LIST, change_url, client_for, kill_redis, make, make_job, texts

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/django_delayq/overview/"
MINUTE = timedelta(minutes=1)


def counts(kind: str = "points", queue: str = "default", **numbers: int) -> Counts:
    found = Counts()
    for name, number in numbers.items():
        for _ in range(number):
            found.add((kind, queue, "tests.app.tasks.noop"), name.replace("__", ":"), latency=0.02)
    return found


def in_redis(broker, at: datetime, counted: Counts) -> None:
    for (kind, queue, task), tally in counted.items():
        MinuteCounts(broker).add(queue, int(at.timestamp()) // 60, [((kind, queue, task), tally)])


@pytest.fixture
def alive(built):
    """A worker that has just said so, in an index that is built."""
    details = {"queues": ["default", "mail"], "started": 0, "threads": 8, "running": 3, "held": 4, "memory_mb": 61}
    built.write_heartbeat(built.read_now_ms(), json.dumps(details))
    return built


def test_a_series_has_what_was_counted_in_each_step_wherever_it_stands(broker):
    since = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
    ledger.add_minute(since, counts(succeeded=2))
    ledger.add_minute(since + MINUTE, counts("jobs", succeeded=1))
    ledger.add_minute(since + 9 * MINUTE, counts(queue="mail", failed=1, succeeded=1))
    ledger.add_minute(since + 10 * MINUTE, counts(succeeded=7))
    in_redis(broker, since + 4 * MINUTE, counts(succeeded=1, skipped__overlap=3))
    in_redis(broker, since, counts(succeeded=2))  # moved, and not yet deleted
    in_redis(broker, since + 30 * MINUTE, counts(succeeded=9))
    first, second = minutes.sum_steps(minutes.read_rows(since, since + 10 * MINUTE), since, 5 * MINUTE, 2)
    assert first["points"]["succeeded"] == 3 and first["points"]["skipped:overlap"] == 3
    assert first["jobs"]["succeeded"] == 1 and "jobs" not in second
    assert (second["points"]["failed"], second["points"]["succeeded"]) == (1, 1)


def test_the_page_shows_what_was_done_and_all_who_are_there(boss, alive):
    make()
    in_redis(alive, utcnow() - 2 * MINUTE, counts(succeeded=40, failed=2, skipped__overlap=3))
    in_redis(alive, utcnow() - 2 * MINUTE, counts("jobs", "mail", retried=5))
    page = boss.get(PAGE).content.decode()
    for text in ("all is well", "succeeded 40", "failed 2", "skipped 3", "retried 5", "3 / 8", "61 MiB"):
        assert text in page, text
    rows = [re.findall("<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert [row for row in rows if row[1:5] == ["40", "0", "3", "2"]], "the table has what the chart shows"
    queue = next(row for row in rows if row and row[0].startswith("default "))
    assert queue[1:] == ["1", "0", "0", "0", "0", "0", "–", "8.4"], "one schedule; 42 in five minutes"
    for span in ("24h", "7d", "nonsense"):
        assert "succeeded 40" in boss.get(f"{PAGE}?span={span}").content.decode()
    assert texts(boss.get("/admin/")) == []


def test_what_fails_is_never_under_all_is_well(boss, alive):
    ScheduleState.objects.filter(schedule=make("a")).update(failing_streak=1)
    make_job()
    make("p", enabled=False)
    page = boss.get(PAGE).content.decode()
    assert "all is well" not in page and "the workers keep up" not in page
    line = health(boss)
    assert "1 schedule fails" in line and 'delayq-good">the workers keep up' not in line
    said = ("1 schedule fails", "1 failed job", "1 schedule is paused", "schedule/?state=failing", "run/failures/")
    for text in said:
        assert text in page, text


def test_what_is_wrong_comes_first_and_stands_on_the_first_page_of_the_admin(boss, broker):
    page = boss.get(PAGE).content.decode()
    assert "manage.py delayq_worker" in page and "all is well" not in page
    said = texts(boss.get("/admin/"))
    assert len(said) == 1 and "problem" in said[0] and PAGE in said[0]
    assert texts(boss.get("/admin/auth/user/")) == [], "not on every page"
    assert texts(client_for("view_user").get("/admin/")) == [], "nor for everybody"


def test_where_redis_is_only_those_are_told_who_may_change_schedules(boss, dead_redis):
    assert "127.0.0.1" in boss.get(PAGE).content.decode()
    forget_broker()
    shown = client_for("view_schedule").get(PAGE).content.decode()
    assert "Redis does not answer." in shown and "127.0.0.1" not in shown


def test_without_a_mirror_it_asks_no_redis(boss, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    page = boss.get(PAGE).content.decode()
    assert "Redis is not used by this process: see DELAYQ['MIRROR'] and DELAYQ_NO_REDIS." in page
    assert texts(boss.get("/admin/")) == []


def test_a_worker_tells_how_busy_it_is(broker):
    worker = Worker(WorkerOptions(queues=("default",), threads=3, burst=True))
    worker.run()
    told = Worker(WorkerOptions(queues=("default",), threads=3)).describe()
    assert (told["threads"], told["running"], told["held"]) == (3, 0, 0) and told["memory_mb"] > 10


@pytest.fixture
def well(built):
    """A built prefix with a live worker for the queue `default`."""
    built.write_heartbeat(built.read_now_ms(), json.dumps({"queues": ["default"]}))
    return built


def health(client: Client, url: str = LIST) -> str:
    """Return the text of the line, its spaces made single."""
    page = client.get(url).content.decode()
    assert page.count('class="delayq-health"') == 1
    part = page[page.index('class="delayq-health"') :]
    return " ".join(part[: part.index("</div>")].split())


def test_the_list_says_that_all_is_well_with_the_numbers(boss, well):
    make("a"), make("b")
    shown = health(boss)
    for text in ("the workers keep up", "1 worker<", "2 entries in Redis", "0 due", "0 running", "0 differences"):
        assert text in shown
    assert "delayq-problems" not in shown


def test_differences_is_a_number(boss, well):
    row = make("a")
    for part in ("due", "point", "gen"):
        name = keys.build_keys(well.config.prefix, well.get_shard(f"s{row.pk}", "default"))[part]
        well.client.delete(name)
    shown = health(boss)
    assert "1 difference<" in shown and "1 problem<" in shown
    page = boss.get(change_url(row)).content.decode()
    assert "1 difference<" in page and "delayq_sync" in page


def test_where_there_is_too_much_to_count_it_says_so(boss, well, monkeypatch):
    monkeypatch.setattr("django_delayq.monitoring.database_side.MOST_COUNTED", 1)
    rows = make("a"), make("b")
    assert "too many entries to compare here" in health(boss) and "0 differences" not in health(boss)
    assert "differences" not in boss.get(change_url(rows[0])).content.decode()


def test_the_list_tells_what_is_wrong_and_what_to_do_and_a_schedule_only_what_concerns_its_queue(boss, well):
    here, there = make("a"), make("b", queue="mail")
    shown = health(boss)
    assert "1 problem<" in shown
    assert "No live worker serves queue mail" in shown and "delayq_worker" in shown
    assert "No live worker" not in boss.get(change_url(here)).content.decode()
    assert "No live worker serves queue mail" in boss.get(change_url(there)).content.decode()


def test_who_may_not_see_runs_is_told_nothing_of_them(well):
    page = health(client_for("view_schedule"))
    assert "the workers keep up" in page and "all is well" not in page, "of schedules that fail it knows nothing"


def test_a_dead_redis_is_told_once_and_asked_once(boss, well, settings, monkeypatch):
    good = settings.CACHES
    make("a")
    kill_redis(settings)
    asked = []
    connect = web.Broker
    monkeypatch.setattr(web, "Broker", lambda **values: asked.append(values) or connect(**values))
    page = boss.get(LIST).content.decode()
    again = boss.get(LIST).content.decode()
    settings.CACHES = good
    for shown in (page, again):
        assert shown.count("delayq-banner") == 1
        assert "delayq-health" not in shown
    assert [values["timeout_seconds"] for values in asked] == [web.TIMEOUT_SECONDS]


def test_a_project_that_does_not_mirror_sees_no_line(boss, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    row = make("a")
    for url in (LIST, change_url(row)):
        page = boss.get(url).content.decode()
        assert not any(text in page for text in ("delayq-health", "delayq-banner", "differences", "not in Redis"))


def test_a_post_asks_nothing(boss, well, monkeypatch):
    row = make("a")
    monkeypatch.setattr("django_delayq.admin.glance.read_health", lambda: pytest.fail("asked"))
    assert boss.post(LIST, {"action": "run_now", "apply": "1", "_selected_action": [row.pk]}).status_code == 302
