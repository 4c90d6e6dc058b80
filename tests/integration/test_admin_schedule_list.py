"""The list of schedules: with a real Redis, with a dead one, with tags, and with schedules that the code declares."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import connection

from django_delayq import sync
from django_delayq.index import keys
from django_delayq.models import Condition, Run, Schedule, ScheduleState, Tag, read_tags
from django_delayq.recurrence import to_ms
from django_delayq.sources import declared
from tests.integration.admin_pages import ADD, HOSTILE, LIST, change_url, client_for, errors, fields, make, text_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_list_shows_state_words_next_due_and_last_outcome(boss):
    make("fine")
    make("asleep", enabled=False, pause_reason="until Monday")
    failing, broken, over = make("failing"), make("broken"), make("over")
    ScheduleState.objects.filter(schedule=failing).update(failing_streak=3, last_status="failed", last_latency_ms=12)
    ScheduleState.objects.filter(schedule=broken).update(condition=Condition.BROKEN, condition_reason="no such zone")
    ScheduleState.objects.filter(schedule=over).update(condition=Condition.FINISHED, condition_reason="ran 5 times")
    page = boss.get(LIST).content.decode()
    for text in ("until Monday", "failing, 3 in a row", "no such zone", "ran 5 times", "latency", "12 ms", ">paused<"):
        assert text in page
    assert "at 09:00, every day, UTC" in page
    assert "Saved in the database, but not in Redis yet" not in page
    assert " 09:00:00</time>" in page


def test_redis_is_asked_once_for_a_list_of_any_length(boss, monkeypatch):
    asked, read = [], sync.read_entries
    monkeypatch.setattr(sync, "read_entries", lambda rows: asked.append(len(rows)) or read(rows))
    for number in range(3):
        make(f"s{number}", queue=("default", "mail")[number % 2])
        assert boss.get(LIST).status_code == 200
    assert asked == [1, 2, 3]


def test_the_list_says_running_overdue_and_missing(boss, broker):
    running, late, lost = make("running"), make("late"), make("lost")
    place = broker.get_shard(f"s{late.pk}", "default")
    names = keys.build_keys(broker.config.prefix, place)
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
    assert page.count(">not in Redis<") == 1


def test_garbage_in_redis_does_not_break_the_list(boss, broker):
    schedule = make()
    point = keys.build_keys(broker.config.prefix, broker.get_shard(f"s{schedule.pk}", "default"))["ready"]
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
    assert page.count('title="Saved in the database, but not in Redis yet') == 2


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=enabled", {"fine", "failing"}),
        ("state=paused", {"asleep"}),
        ("state=failing", {"failing"}),
        ("state=finished", {"over"}),
        ("state=broken", set()),
        ("state=nonsense", {"fine", "asleep", "failing", "over"}),
        ("outcome=failed", {"failing"}),
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
    ScheduleState.objects.filter(schedule=over).update(condition=Condition.FINISHED)
    ScheduleState.objects.filter(schedule__name="fine").delete()
    Schedule._base_manager.filter(pk=failing.pk).update(synced_generation=1)
    response = boss.get(f"{LIST}?{query}")
    assert {row.name for row in response.context["cl"].result_list} == found


def test_the_newest_outcomes_are_a_picture_with_words(boss):
    row, other = make("a"), make("b")
    for number in range(25):
        status = "failed" if number in (0, 24) else "succeeded"
        Run.build_for(row, datetime(2026, 5, 4, 9, number, tzinfo=UTC), status=status).save()
    Run.build_for(other, datetime(2026, 5, 4, 9, 0, tzinfo=UTC), status="skipped").save()
    Schedule._base_manager.update(pause_reason="")
    ScheduleState.objects.update(last_status="failed")
    page = boss.get(LIST).content.decode()
    assert "<title>The last 20 runs: 19 succeeded, 1 failed</title>" in page
    assert "<title>The last 1 runs: 1 skipped</title>" in page
    picture = page[page.index("The last 20 runs") :].partition("</svg>")[0]
    tones = re.findall(r"delayq-fill-(\w+)", picture)
    assert tones == ["good"] * 19 + ["bad"], "the newest at the right"


def tags_of(schedule):
    return [tag.name for tag in schedule.tags.all()]


def test_tags_are_typed_between_commas(boss):
    assert boss.post(ADD, fields(tags=" Nightly,billing,, nightly , a  b")).status_code == 302
    schedule = Schedule.objects.get()
    assert tags_of(schedule) == ["a b", "billing", "nightly"]
    page = boss.get(change_url(schedule))
    assert 'value="a b, billing, nightly"' in page.content.decode()
    assert boss.post(change_url(schedule), fields(tags="billing")).status_code == 302
    assert tags_of(schedule) == ["billing"]
    assert boss.post(change_url(schedule), fields(tags="")).status_code == 302
    assert tags_of(schedule) == []


def test_what_is_too_long_or_too_much_is_refused_as_it_was_typed(boss):
    typed = f"fine, {'x' * 51}"
    answer = boss.post(ADD, fields(tags=typed))
    assert errors(answer) == {"tags": [f"“{'x' * 51}” is longer than 50 characters."]}
    assert f'value="{typed}"' in answer.content.decode() and not Schedule.objects.exists()
    with pytest.raises(ValidationError, match="21 tags; at most 20"):
        read_tags(",".join(f"t{number}" for number in range(21)))


def test_the_list_shows_tags_and_filters_by_them_and_by_tasks(boss):
    make("four", task="tests.app.tasks.add", args=[1])
    assert "?tag=" not in boss.get(LIST).content.decode(), "there are none"
    for name, tags in (("one", ["red", "blue"]), ("two", ["red", HOSTILE]), ("three", [])):
        schedule = make(name)
        schedule.tags.put(schedule, tags)
    page = boss.get(LIST)
    assert "default blue red" in text_of(page).replace("  ", " ") and HOSTILE not in page.content.decode()
    assert [row.name for row in boss.get(f"{LIST}?tag=red&o=1").context["cl"].result_list] == ["one", "two"]
    assert [row.name for row in boss.get(f"{LIST}?task=tests.app.tasks.add").context["cl"].result_list] == ["four"]
    assert not boss.get(f"{LIST}?tag=none").context["cl"].result_list
    (blue,) = Schedule.objects.tagged("blue")
    assert "Tags: blue, red" in text_of(client_for("view_schedule").get(change_url(blue)))


def test_a_schedule_that_is_deleted_by_code_without_tags_leaves_nothing_in_the_way():
    schedule, other = make("one"), make("two")
    for row in (schedule, other):
        row.tags.put(row, ["red"])
    other.delete()
    assert Tag.objects.count() == 1
    with connection.cursor() as cursor:  # as code of a former release does
        cursor.execute("DELETE FROM django_delayq_schedulestate WHERE schedule_id = %s", [schedule.pk])
        cursor.execute("DELETE FROM django_delayq_schedule WHERE id = %s", [schedule.pk])
    assert not Schedule.objects.exists() and not Schedule.objects.tagged("red").exists()


SAID = "periodic('0 9 * * *', name='s', grace=timedelta(minutes=90), kwargs={'path': 'x'})(note)"


@pytest.fixture
def row(code):
    code.says(SAID)
    declared.sync()
    return Schedule.objects.get()


def plain(response):
    """Return what a reader sees."""
    assert response.status_code == 200
    return text_of(response)


def test_the_list_tells_what_is_in_the_code_or_gone(boss, row, code):
    make("h")
    assert boss.get(LIST).content.decode().count('title="Declared as “s”."') == 1
    code.says()
    declared.sync()
    assert "The code no longer declares this schedule." in plain(boss.get(LIST))


@pytest.mark.parametrize(
    ("origin", "names"), [("hand", {"h"}), ("code", {"s"}), ("gone", {"g"}), ("x", {"h", "s", "g"})]
)
def test_the_list_can_be_filtered_by_origin(boss, code, origin, names):
    code.says(f"{SAID}\nperiodic('0 9 * * *', name='g')(noop)")
    declared.sync()
    code.says(SAID)
    declared.sync()
    make("h")
    shown = boss.get(LIST, {"origin": origin}).context["cl"].result_list
    assert {schedule.name for schedule in shown} == names


def test_people_edit_the_switch_and_the_tags_and_nothing_else(boss, row, code):
    page = boss.get(change_url(row))
    assert {*page.context["adminform"].form.fields} == {"enabled", "pause_reason", "tags", "seen"}
    assert "owns all fields except enabled" in plain(page) and "0 9 * * *" in plain(page)
    assert "Declared as “s” in tests.app.tasks." in plain(page)
    assert "owns all fields except" not in plain(boss.get(change_url(make("made by hand"))))
    posted = {"seen": row.generation, "pause_reason": "incident", "tags": "billing", "cron": "0 8 * * *", "args": "[1]"}
    assert boss.post(change_url(row), posted).status_code == 302
    after = Schedule.objects.get(name="s")
    assert (after.enabled, after.pause_reason, after.cron, after.args) == (False, "incident", "0 9 * * *", [])
    assert (after.kwargs, [tag.name for tag in after.tags.all()]) == ({"path": "x"}, ["billing"])
    assert boss.post(f"{LIST}{row.pk}/preview/", {}).status_code == 200
    assert boss.get(f"{LIST}{row.pk}/restore/").status_code == 403
    code.says()
    declared.sync()
    assert "cron" in boss.get(change_url(row)).context["adminform"].form.fields


def test_before_a_deletion_it_is_told_that_the_schedule_comes_back(boss, row, code):
    hand = make("h")
    warning = "the next sync creates it again"
    assert warning in plain(boss.get(f"{LIST}{row.pk}/delete/"))
    assert warning not in plain(boss.get(f"{LIST}{hand.pk}/delete/"))
    for chosen, count in (([hand.pk], 0), ([hand.pk, row.pk], 1)):
        page = boss.post(LIST, {"action": "delete_selected", "_selected_action": chosen})
        assert plain(page).count(warning) == count
    code.says()
    declared.sync()
    assert warning not in plain(boss.get(f"{LIST}{row.pk}/delete/"))
    assert boss.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Schedule.objects.exclude(declared_key=None).exists()


def test_who_may_only_delete_schedules_may_delete_a_declared_one(row):
    client = client_for("view_schedule", "delete_schedule")
    assert client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Schedule.objects.exists()
