"""The list of schedules, with a real Redis and with a dead one."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq import mirror
from django_delayq.broker import keys
from django_delayq.models import Condition, Run, Schedule, ScheduleState
from django_delayq.timing import to_ms
from tests.integration.admin_pages import LIST, change_url, make

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_list_shows_state_words_next_due_and_last_outcome(boss):
    make("fine")
    make("asleep", enabled=False, pause_reason="until Monday")
    failing, parked, over = make("failing"), make("parked"), make("over")
    ScheduleState.objects.filter(schedule=failing).update(failing_streak=3, last_status="failed", last_lag_ms=12)
    ScheduleState.objects.filter(schedule=parked).update(condition=Condition.PARKED, condition_reason="no such zone")
    ScheduleState.objects.filter(schedule=over).update(condition=Condition.EXHAUSTED, condition_reason="ran 5 times")
    page = boss.get(LIST).content.decode()
    for text in ("until Monday", "failing, 3 in a row", "no such zone", "ran 5 times", "lag", "12 ms", ">paused<"):
        assert text in page
    assert "at 09:00, every day, UTC" in page
    assert "Redis has not seen it" not in page
    assert " 09:00:00</time>" in page


def test_a_list_of_forty_asks_the_database_and_redis_as_often_as_one_of_two(boss, monkeypatch):
    asked = []
    read = mirror.read_entries
    monkeypatch.setattr(mirror, "read_entries", lambda rows: asked.append(len(rows)) or read(rows))

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert boss.get(LIST).status_code == 200
        return len(captured)

    make("a"), make("b")
    ScheduleState.objects.all().delete()
    few = queries()
    for number in range(38):
        make(f"s{number}", queue=("default", "mail")[number % 2])
    assert queries() <= few + 1  # the queue filter appears
    assert asked == [2, 40]


def test_the_list_says_running_overdue_and_missing(boss, broker):
    running, late, lost = make("running"), make("late"), make("lost")
    place = broker.shard_of(f"s{late.pk}", "default")
    names = keys.all_keys(broker.config.prefix, place)
    due, point, lease = names["due"], names["point"], names["lease"]
    broker.client.hset(lease, f"s{running.pk}", "w:1")
    past = to_ms(datetime.now(UTC) - timedelta(minutes=1))
    broker.client.zadd(due, {f"s{late.pk}": past})
    broker.client.hset(point, f"s{late.pk}", past)
    broker.client.zrem(due, f"s{lost.pk}")
    broker.client.hdel(point, f"s{lost.pk}")
    page = boss.get(LIST).content.decode()
    assert page.count("running now") == 1
    assert page.count("overdue") == 1
    assert page.count("not in Redis") == 1


def test_garbage_in_redis_does_not_break_the_list(boss, broker):
    schedule = make()
    point = keys.shard_keys(broker.config.prefix, broker.shard_of(f"s{schedule.pk}", "default"))[1]
    for garbage in ("9" * 300, "nan", "x", "999999999999999999"):
        broker.client.hset(point, f"s{schedule.pk}", garbage)
        assert boss.get(LIST).status_code == 200
    broker.client.delete(point)
    broker.client.set(point, "foreign")
    assert "Redis does not answer" in boss.get(LIST).content.decode()
    assert boss.get(change_url(schedule)).status_code == 200


def test_without_redis_the_list_shows_the_databases_knowledge_and_one_banner(boss, dead_redis):
    make("a"), make("b")
    ScheduleState.objects.update(next_due_at=datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC))
    page = boss.get(LIST).content.decode()
    assert page.count("2031-05-06 07:08:09</time>") == 2
    assert page.count('class="delayq-banner"') == 1
    assert page.count('title="Saved in the database, but Redis has not seen it') == 2


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=enabled", {"fine", "failing"}),
        ("state=paused", {"asleep"}),
        ("state=failing", {"failing"}),
        ("state=exhausted", {"over"}),
        ("state=parked", set()),
        ("state=unmirrored", {"failing"}),
        ("state=nonsense", {"fine", "asleep", "failing", "over"}),
        ("outcome=failed", {"failing"}),
        ("outcome=none", {"fine", "asleep", "over"}),
        ("kind__exact=once", {"over"}),
        ("queue=mail", {"asleep"}),
        ("_facets=True", {"fine", "asleep", "failing", "over"}),
        ("q=fail", {"failing"}),
        ("q=app.tasks.add", {"over"}),
    ],
)
def test_filters_and_search(boss, query, found):
    make("fine")
    make("asleep", enabled=False, queue="mail")
    failing = make("failing")
    over = make("over", kind="once", cron="", at=datetime(2040, 1, 1, tzinfo=UTC), task="tests.app.tasks.add", args=[1])
    ScheduleState.objects.filter(schedule=failing).update(failing_streak=3, last_status="failed")
    ScheduleState.objects.filter(schedule=over).update(condition=Condition.EXHAUSTED)
    ScheduleState.objects.filter(schedule__name="fine").delete()
    Schedule._base_manager.filter(pk=failing.pk).update(synced_generation=1)
    response = boss.get(f"{LIST}?{query}")
    assert {row.name for row in response.context["cl"].result_list} == found


def test_the_newest_outcomes_are_a_picture_with_words(boss):
    row, other = make("a"), make("b")
    for number in range(25):
        status = "failed" if number in (0, 24) else "succeeded"
        Run.of(row, datetime(2026, 5, 4, 9, number, tzinfo=UTC), status=status).save()
    Run.of(other, datetime(2026, 5, 4, 9, 0, tzinfo=UTC), status="skipped").save()
    Schedule._base_manager.update(pause_reason="")
    ScheduleState.objects.update(last_status="failed")
    page = boss.get(LIST).content.decode()
    assert "<title>The last 20 runs: 19 succeeded, 1 failed</title>" in page
    assert "<title>The last 1 runs: 1 skipped</title>" in page
    picture = page[page.index("The last 20 runs") :].partition("</svg>")[0]
    tones = re.findall(r"delayq-fill-(\w+)", picture)
    assert tones == ["good"] * 19 + ["bad"], "the newest at the right"
