"""Run now, pause, resume, delete and backfill in the admin, also of many, and that hostile texts stay texts."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse

from django_delayq.admin import schedule_actions
from django_delayq.models import Definition, Origin, Run, Schedule, Status
from tests.app import tasks
from tests.integration.admin_pages import ADD, HOSTILE, LIST, RUNS, change_url, chosen, client_for, make, texts
from tests.integration.mirroring import absent, mirrored

pytestmark = pytest.mark.django_db(transaction=True)


def test_run_now_orders_one_run_and_links_to_it(boss):
    schedule = make(enabled=False)
    page = boss.get(f"{LIST}{schedule.pk}/run-now/").content.decode()
    assert "<h1>Run now</h1>" in page and ">s</li>" in page and not Run.objects.exists(), "it asks first"
    response = boss.post(f"{LIST}{schedule.pk}/run-now/", follow=True)
    run = Run.objects.get()
    assert (run.origin, run.status, run.schedule_id) == (Origin.MANUAL, Status.QUEUED, schedule.pk)
    assert len(texts(response)) == 1
    assert reverse("admin:django_delayq_run_change", args=[run.pk]) in texts(response)[0]
    assert boss.post(f"{LIST}999/run-now/").status_code == 404


def test_pause_asks_for_a_reason_and_resume_takes_it_away(boss):
    schedule = make()
    page = boss.get(f"{LIST}{schedule.pk}/pause/").content.decode()
    assert "<label" in page
    assert boss.post(f"{LIST}{schedule.pk}/pause/", {"reason": "x" * 201}).status_code == 200, "too long"
    assert Schedule.objects.get().enabled
    response = boss.post(f"{LIST}{schedule.pk}/pause/", {"reason": "incident 7"}, follow=True)
    assert texts(response) == ["“s” is paused."]
    saved = Schedule.objects.get()
    assert (saved.enabled, saved.pause_reason) == (False, "incident 7")
    response = boss.post(f"{LIST}{schedule.pk}/resume/", follow=True)
    assert len(texts(response)) == 1
    saved = Schedule.objects.get()
    assert (saved.enabled, saved.pause_reason) == (True, "")
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == [
        "Paused: incident 7",
        "Resumed.",
    ]


def test_the_words_of_a_task_and_the_page_that_asks_about_many_are_escaped(boss, monkeypatch):
    monkeypatch.setattr(tasks.noop.func, "__doc__", HOSTILE)
    asked = boss.post(LIST, {"action": "pause", "_selected_action": [make(HOSTILE).pk]})
    for page in (boss.get(ADD).content.decode(), asked.content.decode()):
        assert HOSTILE not in page and "&lt;script&gt;" in page


def test_no_page_needs_inline_script_or_style(boss):
    schedule = make()
    coming, time = "/admin/django_delayq/overview/coming/", "start_0=2026-03-10&end_0=2026-03-11"
    pages = (LIST, ADD, change_url(schedule), f"{LIST}{schedule.pk}/pause/", f"{LIST}{schedule.pk}/backfill/?{time}")
    for url in (*pages, RUNS, coming, f"{coming}?span=7d"):
        page = boss.get(url).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>\s*\S", page), url
        assert "<style" not in page, url
        assert not re.search(r"\s(style|on\w+)=\"", page), url


@pytest.mark.parametrize(
    ("permission", "allowed", "refused"),
    [
        ("run_schedule", ("run_now", "backfill"), ("pause", "resume", "delete")),
        ("pause_schedule", ("pause", "resume"), ("run_now", "backfill", "delete")),
    ],
)
def test_running_and_pausing_have_permissions_of_their_own(broker, permission, allowed, refused):
    row = make("one")
    client = client_for("view_schedule", permission)
    page = client.get(change_url(row)).content.decode()
    for name in (*allowed, *refused):
        address = reverse(f"admin:django_delayq_schedule_{name}", args=[row.pk])
        assert client.get(address).status_code == (200 if name in allowed else 403), name
        if name != "resume":  # it is not paused
            assert (f'href="{address}"' in page) == (name in allowed), name
    shown = client.get(LIST).content.decode()
    assert ('value="run_now"' in shown, 'value="pause"' in shown) == ("run_now" in allowed, "pause" in allowed)
    posted = client.post(LIST, {"action": allowed[0], "_selected_action": [row.pk], "apply": "1", "reason": "x"})
    assert posted.status_code == 302
    row.refresh_from_db()
    assert (Run.objects.exists(), row.enabled) == ("run_now" in allowed, "run_now" in allowed)
    address = reverse(f"admin:django_delayq_schedule_{allowed[0]}", args=[row.pk])
    assert client_for(permission).get(address).status_code == 403


@pytest.fixture
def five(monkeypatch):
    """Five schedules, of which two are done in one transaction."""
    monkeypatch.setattr(schedule_actions, "MOST_AT_ONCE", 2)
    return [make(f"s{number}") for number in range(5)]


def act_on_all(client, action, **values):
    first = Schedule.objects.order_by("pk").first()
    return client.post(
        LIST, {"action": action, "select_across": "1", "_selected_action": first.pk, **values}, follow=True
    )


def test_of_those_that_are_chosen_it_asks_first_and_does_it_to_no_other(boss, five):
    post = {"_selected_action": [five[0].pk, five[3].pk], "select_across": "0", "index": "0"}
    asked = boss.post(LIST, {**post, "action": "pause"})
    assert not Schedule.objects.paused().exists()
    assert texts(boss.post(LIST, {**chosen(asked), "reason": "storm"}, follow=True)) == ["2 schedules are paused."]
    assert {*Schedule.objects.paused()} == {five[0], five[3]}
    for action in ("resume", "run_now"):
        assert boss.post(LIST, {**post, "action": action}).context["names"] == ["s0", "s3"]
    assert Schedule.objects.paused().exists() and not Run.objects.exists()


def test_each_of_all_that_match_has_its_history_its_entry_and_its_place_in_redis(boss, five, broker):
    assert len(act_on_all(boss, "pause").context["names"]) == 5 and not Schedule.objects.paused().exists()
    before = {row.pk: row.generation for row in five}
    assert texts(act_on_all(boss, "pause", apply="1", reason="storm")) == ["5 schedules are paused."]
    assert {row.pause_reason for row in Schedule.objects.paused()} == {"storm"}
    assert all(row.generation > before[row.pk] for row in Schedule.objects.all())
    assert sorted(Definition.objects.values_list("schedule", "by")) == [(row.pk, "u0") for row in five]
    assert [entry.get_change_message() for entry in LogEntry.objects.all()] == ["Paused: storm"] * 5
    assert all(absent(broker, row) for row in five)
    assert texts(act_on_all(boss, "resume", apply="1")) == ["5 schedules continue with their next due times."]
    assert all(mirrored(broker, row) for row in Schedule.objects.all())
    assert texts(act_on_all(boss, "run_now", apply="1")) == ["5 runs are queued."]
    assert sorted(Run.objects.values_list("schedule", flat=True)) == [row.pk for row in five]
    assert "Are you sure" in act_on_all(boss, "delete_selected").content.decode()
    assert texts(act_on_all(boss, "delete_selected", post="yes")) == ["Successfully deleted 5 schedules."]
    assert not Schedule.objects.exists() and all(absent(broker, row) for row in five)
    assert LogEntry.objects.filter(action_flag=DELETION).count() == 5


def test_after_ten_seconds_it_stops_and_says_how_many_are_left(boss, five, monkeypatch):
    monkeypatch.setattr(schedule_actions, "MOST_SECONDS", 0)
    assert texts(act_on_all(boss, "run_now", apply="1")) == [
        "2 runs are queued.",
        "3 of 5 schedules were not changed: it takes longer than 0 seconds. Filter the list, or use code.",
    ]
    assert sorted(Run.objects.values_list("schedule", flat=True)) == [row.pk for row in five[:2]]


def test_a_slice_that_fails_leaves_whole_ones(boss, five, monkeypatch):
    pause = schedule_actions.ACTIONS["pause"]

    def refuse(schedules, by, reason):
        pause.do(schedules, by, reason)
        if five[2] in schedules:
            raise IntegrityError("another row needs them")

    monkeypatch.setitem(schedule_actions.ACTIONS, "pause", replace(pause, do=refuse))
    response = act_on_all(boss, "pause", apply="1", reason="")
    assert texts(response)[1].startswith("3 of 5 schedules were not changed: another row needs them.")
    assert list(Schedule.objects.paused()) == five[:2] and LogEntry.objects.count() == 2


def test_who_may_not_change_or_delete_does_it_to_none(five):
    act_on_all(client_for("view_schedule"), "pause", apply="1", reason="")
    act_on_all(client_for("view_schedule", "change_schedule"), "delete_selected", post="yes")
    act_on_all(client_for("view_schedule", "delete_schedule"), "pause", apply="1", reason="")
    assert Schedule.objects.filter(enabled=True).count() == 5


DAY = datetime(2026, 3, 10, tzinfo=UTC)
TIME = {"start_0": "2026-03-10", "start_1": "00:00", "end_0": "2026-03-10", "end_1": "03:00:00"}


def url(schedule: Schedule) -> str:
    return f"{LIST}{schedule.pk}/backfill/"


def hourly(**values: object) -> Schedule:
    return make(cron="0 * * * *", **values)


def ran(schedule: Schedule, hour: int, status: str, origin: str = "due") -> None:
    Run.build_for(schedule, DAY + timedelta(hours=hour), status=status, origin=origin).save()


def test_the_page_asks_for_a_time_then_shows_the_points_and_writes_nothing(boss):
    schedule = hourly(timezone="Europe/Riga")
    ran(schedule, 0, "succeeded")
    ran(schedule, 1, "skipped")
    ran(schedule, 2, "failed", "backfill")
    empty = boss.get(url(schedule)).content.decode()
    assert 'type="date"' in empty and 'method="post"' not in empty.split('id="content"')[1]
    page = boss.get(url(schedule), TIME).content.decode()
    assert "2 runs to start" in page and "2 due times are left out" in page
    assert "Tue 2026-03-10 03:00:00 EET" in page and "Tue 2026-03-10 01:00:00" not in page
    assert "2026-03-10 01:00:00" in page
    assert "nothing recorded" in page and "backfilled before" in page
    assert Run.objects.count() == 3


def test_a_schedule_in_utc_has_one_column_of_times(boss):
    for zone, columns in (("UTC", 0), ("Europe/Riga", 1)):
        page = boss.get(url(hourly(name=zone, timezone=zone)), TIME).content.decode()
        assert page.count('<th scope="col">UTC</th><th scope="col">UTC</th>') == 0
        assert page.count(f'<th scope="col">{zone}</th><th scope="col">UTC</th>') == columns


def test_what_the_page_shows_is_what_its_form_orders(boss, broker):
    schedule = hourly()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    page = strict.get(url(schedule), TIME).content.decode()
    form = page[page.index('<form method="post">', page.index("delayq-plan")) :]
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    assert hidden.keys() - TIME.keys() == {"csrfmiddlewaretoken"}
    response = strict.post(url(schedule), hidden, follow=True)
    assert response.redirect_chain == [(change_url(schedule), 302)]
    assert len(texts(response)) == 1
    assert "4 runs of “s” are queued" in texts(response)[0]
    assert f"?schedule__id__exact={schedule.pk}&amp;origin__exact=backfill" in texts(response)[0]
    runs = Run.objects.order_by("due_at")
    points = [(Origin.BACKFILL, DAY + timedelta(hours=hour)) for hour in range(4)]
    assert [(run.origin, run.due_at) for run in runs] == points
    assert all(view.score_ms is not None for view in broker.read_views([(f"j{run.pk}", "default") for run in runs]))
    assert LogEntry.objects.get().get_change_message() == (
        "Backfill: 4 runs. 2026-03-10 00:00:00 – 2026-03-10 03:00:00 UTC"
    )
    again = boss.post(url(schedule), hidden, follow=True)
    assert texts(again) == ["No due time in this range is left to run."]
    assert Run.objects.count() == 4


def test_a_time_without_points_offers_no_order(boss):
    schedule = hourly()
    page = boss.get(url(schedule), {**TIME, "end_1": "00:00"}).content.decode()
    assert 'value="Start 1 run"' in page
    page = boss.get(url(schedule), {**TIME, "start_1": "00:01", "end_1": "00:59"}).content.decode()
    assert "0 runs to start" in page and "delayq-plan" in page
    assert 'value="Start' not in page


def test_only_the_first_points_are_listed(boss):
    page = boss.get(url(hourly()), {**TIME, "end_1": "23:00"}).content.decode()
    assert "24 runs to start" in page and "and 14 more" in page
    assert page.count("nothing recorded") == 10


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"end_0": "2026-03-09"}, "before the start"),
        ({"end_0": ""}, "This field is required."),
        ({"end_0": "soon"}, "valid date"),
        ({"start_0": "2025-01-01"}, "at most 1000 can start at once"),
    ],
)
def test_what_cannot_be_ordered_is_said_and_not_ordered(boss, values, told):
    schedule = hourly()
    for response in (boss.get(url(schedule), {**TIME, **values}), boss.post(url(schedule), {**TIME, **values})):
        assert response.status_code == 200
        assert told in response.content.decode()
        assert 'value="Start' not in response.content.decode()
    assert not Run.objects.exists()


def test_a_schedule_that_is_edited_between_the_page_and_the_order_is_told(boss):
    schedule = hourly()
    assert "4 runs to start" in boss.get(url(schedule), TIME).content.decode()
    Schedule._base_manager.filter(pk=schedule.pk).update(kind="every", cron="", every=timedelta(hours=1))
    Schedule._base_manager.filter(pk=schedule.pk).update(every_from="finish")
    response = boss.post(url(schedule), TIME, follow=True)
    assert "Use “Run now”." in response.content.decode()
    assert not Run.objects.exists()


def test_an_interval_whose_zone_is_gone_from_the_system_can_still_be_backfilled(boss):
    schedule = make(kind="every", cron="", every=timedelta(hours=1), start_at=DAY)
    Schedule._base_manager.update(timezone="Mars/Olympus")
    assert "4 runs to start" in boss.get(url(schedule), TIME).content.decode()
