"""The line above the list that tells how the whole thing stands, and the same beside a schedule."""

import json

import pytest
from django.test import Client

from django_delayq.broker import keys, web
from tests.integration.admin_pages import LIST, change_url, client_for, kill_redis, make

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def well(built):
    """A built prefix with a live worker for the queue `default`."""
    built.heartbeat(built.now_ms(), json.dumps({"queues": ["default"]}))
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
    for text in ("the workers keep up", "1 worker<", "2 entries in Redis", "0 due", "0 running", "drift 0"):
        assert text in shown
    assert "delayq-problems" not in shown


def test_drift_is_a_number(boss, well):
    row = make("a")
    for part in ("due", "point", "gen"):
        name = keys.shard_keys(well.config.prefix, well.shard_of(f"s{row.pk}", "default"))[keys.PARTS.index(part)]
        well.client.delete(name)
    shown = health(boss)
    assert "drift 1" in shown and "1 problem<" in shown
    page = boss.get(change_url(row)).content.decode()
    assert "drift 1" in page and "delayq_sync" in page


def test_where_there_is_too_much_to_count_it_says_so(boss, well, monkeypatch):
    monkeypatch.setattr("django_delayq.status.looking.MOST_COUNTED", 1)
    rows = make("a"), make("b")
    assert "too many entries to count here" in health(boss) and "drift 0" not in health(boss)
    assert "drift" not in boss.get(change_url(rows[0])).content.decode()


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


def test_another_databases_prefix_is_told_with_the_way_out(boss, well):
    make("a")
    well.write_layout(json.dumps({"database": "another", "version": 1, "shards": {"default": 1, "mail": 1}}))
    shown = health(boss)
    assert "1 problem<" in shown and "delayq_sync --adopt" in shown
    assert "drift" not in shown


def test_a_project_that_does_not_mirror_sees_no_line(boss, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    row = make("a")
    for url in (LIST, change_url(row)):
        page = boss.get(url).content.decode()
        assert not any(text in page for text in ("delayq-health", "delayq-banner", "drift", "Redis has not seen it"))


def test_a_post_asks_nothing(boss, well, monkeypatch):
    row = make("a")
    monkeypatch.setattr("django_delayq.admin.glance.ask_health", lambda: pytest.fail("asked"))
    assert boss.post(LIST, {"action": "run_now", "apply": "1", "_selected_action": [row.pk]}).status_code == 302
