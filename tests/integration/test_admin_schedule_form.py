"""The form of a schedule: what it accepts, refuses, keeps and shows."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry

from django_delayq.index import web
from django_delayq.models import Schedule
from tests.faults.harness.servers import pointing_at
from tests.integration.admin_pages import ADD, LIST, change_url, client_for, errors, fields, make, texts
from tests.integration.mirroring import blackhole, visitors

pytestmark = pytest.mark.django_db(transaction=True)

ONCE = {"kind": "once", "cron": "", "at_0": "2040-01-01", "at_1": "12:00:00"}


def test_a_saved_schedule_is_mirrored_and_has_its_point_in_redis(boss, broker):
    response = boss.post(ADD, fields(args="", kwargs="", backoff="1m 30s", grace="PT15M"), follow=True)
    schedule = Schedule.objects.get()
    assert (schedule.args, schedule.kwargs) == ([], {})
    assert (schedule.backoff, schedule.grace, schedule.jitter) == (
        timedelta(seconds=90), timedelta(minutes=15), timedelta(0),
    )  # fmt: skip
    assert schedule.generation == schedule.synced_generation
    assert broker.read_views([(f"s{schedule.pk}", "default")])[0].point_ms is not None
    assert len(texts(response)) == 1


def test_where_redis_says_nothing_a_save_waits_for_it_once_and_says_so(boss, broker, monkeypatch, web_timeout):
    monkeypatch.setattr(web, "TIMEOUT_SECONDS", web_timeout)
    monkeypatch.setattr(web, "BREAKER_SECONDS", 600)  # however long the pages take
    server, url = blackhole()
    with pointing_at(url):
        response = boss.post(ADD, fields(), follow=True)
        page = boss.get(change_url(Schedule.objects.get())).content.decode()
    assert visitors(server) == 1
    server.close()
    assert [text for text in texts(response) if "not in Redis yet" in text] == [
        "Saved, but not in Redis yet. A worker adds it within seconds."
    ]
    assert "does not answer" in page


def test_what_follows_an_outcome_is_chosen_in_the_form_like_the_task(boss):
    page = boss.get(ADD).content.decode()
    for name in ("on_success", "on_failure"):
        assert re.search(rf'<input[^>]* name="{name}"[^>]* list="delayq-tasks"', page)
        assert errors(boss.post(ADD, fields(**{name: "os.system"}))).keys() == {name}
        assert errors(boss.post(ADD, fields(**{name: "tests.app.tasks.noop"}))).keys() == {name}
    told = "tests.jobs.tasks.heard_of_run"
    boss.post(ADD, fields(on_failure=told))
    schedule = Schedule.objects.get()
    assert (schedule.on_success, schedule.on_failure) == ("", told)


def test_what_is_kept_of_its_runs_is_chosen_in_the_form(boss):
    assert errors(boss.post(ADD, fields(keep="last"))).keys() == {"keep_last"}
    boss.post(ADD, fields(keep="last", keep_last="20"))
    schedule = Schedule.objects.get()
    assert (schedule.keep, schedule.keep_last) == ("last", 20)
    boss.post(change_url(schedule), fields(keep="", keep_last=""))
    schedule.refresh_from_db()
    assert (schedule.keep, schedule.keep_last) == ("", None)


def test_every_typed_as_cron_becomes_an_interval(boss):
    boss.post(ADD, fields(cron="@every 1h30m"))
    schedule = Schedule.objects.get()
    assert (schedule.kind, schedule.cron, schedule.every) == ("every", "", timedelta(minutes=90))


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"cron": "61 * * * *"}, "cron", "61"),
        ({"cron": ""}, "cron", "needs this field"),
        ({"every": "5m"}, "every", "Leave this empty"),
        ({"kind": "every", "cron": "", "every": "0"}, "every", "at least 1 s"),
        ({"kind": "every", "cron": "", "every": "soon"}, "every", "1h30m"),
        ({**ONCE, "at_0": "2001-01-01"}, "at", "2001-01-01 12:00:00 EET has passed"),
        ({"timezone": "Europe/Rigga"}, "timezone", "Europe/Riga"),
        ({**ONCE, "timezone": "Europe/Rigga"}, "timezone", "Europe/Riga"),
        ({**ONCE, "at_0": "2040-03-25", "at_1": "02:30:00", "timezone": "Europe/Berlin"}, "at", "does not exist"),
        ({**ONCE, "at_0": "0001-01-01", "at_1": "00:00:00"}, "at", "calendar"),
        ({"end_at_0": "2001-01-01", "end_at_1": "00:00:00"}, "end_at", "no due point"),
        ({"task": "os.system"}, "task", "No installed app has a @task function 'os.system'"),
        ({"queue": "nowhere"}, "queue", "valid choice"),
        ({"task": "tests.app.tasks.add"}, "call", "add(a: int"),
        ({"args": "[1"}, "call", "not JSON"),
        ({"args": "['a']"}, "call", "double quotes"),
        ({"args": "[NaN]"}, "call", "NaN is not a finite number"),
        ({"args": "[1e999]"}, "call", "1e999 is not a finite number"),
        ({"args": "{}"}, "call", "must be a JSON list"),
        ({"args": "[" * 60_000}, "call", "cannot be used"),
        ({"kwargs": "[]"}, "call", "must be a JSON object"),
        ({"jitter": "-5s"}, "jitter", "is not a duration"),
        ({"timeout": "0"}, "timeout", "longer than zero"),
        ({"max_attempts": "0"}, "max_attempts", "greater than or equal to 1"),
        ({"name": ""}, "name", "required"),
    ],
)
def test_bad_input_is_told_at_its_field_and_nothing_is_saved(boss, values, field, message):
    found = errors(boss.post(ADD, fields(**values)))
    assert set(found) == {field}
    assert len(found[field]) == 1  # not also what only follows from it
    assert message in found[field][0]
    assert not Schedule.objects.exists()


def test_a_timeout_is_typed_in_words_shown_with_its_meaning_and_taken_away_again(boss):
    boss.post(ADD, fields(timeout="10m"))
    schedule = Schedule.objects.get()
    assert schedule.timeout == timedelta(minutes=10)
    page = boss.get(change_url(schedule)).content.decode()
    assert re.search(r'<input[^>]*name="timeout"[^>]*value="10m"|<input[^>]*value="10m"[^>]*name="timeout"', page)
    assert "takes longer" in page
    effective_from = schedule.effective_from
    boss.post(change_url(schedule), fields(timeout="", seen=str(schedule.generation)))
    schedule.refresh_from_db()
    assert (schedule.timeout, schedule.effective_from) == (None, effective_from)


def shown_values(page) -> dict[str, str]:
    """Return what the form of a page posts where nobody types anything."""
    posted = {}
    for bound in page.context["adminform"].form:
        value = bound.value()
        if bound.name in ("at", "start_at", "end_at"):
            shown = bound.field.widget.decompress(value) if value else ["", ""]
            posted[f"{bound.name}_0"], posted[f"{bound.name}_1"] = (str(part) for part in shown)
        elif bound.name == "call":
            posted |= bound.field.widget.shown.data
        elif value is not None and value is not False:
            posted[bound.name] = "on" if value is True else str(value)
    return posted


def test_opening_and_saving_a_form_changes_nothing_it_cannot_show(boss):
    at = datetime(2040, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    schedule = make(
        kind="once", cron="", at=at, start_at=at - timedelta(days=1), grace=timedelta(milliseconds=1500),
        jitter=timedelta(microseconds=7), task="tests.app.tasks.add", args=[1], kwargs={"b": 2},
    )  # fmt: skip
    assert boss.post(change_url(schedule), shown_values(boss.get(change_url(schedule)))).status_code == 302
    again = Schedule.objects.get()
    for name in ("at", "start_at", "grace", "jitter", "args", "kwargs", "effective_from", "enabled"):
        assert getattr(again, name) == getattr(schedule, name), name
    assert LogEntry.objects.get().get_change_message() == "No fields changed."


@pytest.mark.parametrize("use_tz", [True, False])
def test_instants_are_typed_and_shown_in_the_zone_of_the_schedule(boss, settings, use_tz):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
    typed = {**ONCE, "timezone": "Europe/Berlin", "start_at_0": "2039-07-01", "start_at_1": "00:30"}
    preview = boss.post(f"{LIST}0/preview/", fields(**typed)).json()["upcoming"]
    assert "2040-01-01 12:00:00 CET" in preview and "2040-01-01 11:00:00</td>" in preview
    boss.post(ADD, fields(**typed))
    schedule = Schedule.objects.get()
    assert schedule.at == datetime(2040, 1, 1, 11, tzinfo=UTC)
    assert schedule.start_at == datetime(2039, 6, 30, 22, 30, tzinfo=UTC)
    assert "2040-01-01 12:00:00</time>, Europe/Berlin" in boss.get(LIST).content.decode()
    page = boss.get(change_url(schedule))
    for value in ("2040-01-01", "12:00:00", "2039-07-01", "00:30:00"):
        assert f'value="{value}"' in page.content.decode()
    assert boss.post(change_url(schedule), shown_values(page)).status_code == 302
    again = Schedule.objects.get()
    assert (again.at, again.start_at, again.effective_from) == (schedule.at, schedule.start_at, schedule.effective_from)
    assert LogEntry.objects.latest("pk").get_change_message() == "No fields changed."


def test_who_may_only_look_sees_instants_in_the_zone_of_the_schedule(db):
    start, at = datetime(2039, 7, 1, tzinfo=UTC), datetime(2040, 1, 1, 11, tzinfo=UTC)
    schedule = make(kind="once", cron="", at=at, start_at=start, timezone="Asia/Tokyo")
    page = client_for("view_schedule").get(change_url(schedule)).content.decode()
    assert "2040-01-01 20:00:00</time>" in page and "2039-07-01 09:00:00</time>" in page


def test_another_zone_means_the_same_times_on_another_clock(boss):
    boss.post(ADD, fields(**ONCE, timezone="Europe/Berlin"))
    schedule = Schedule.objects.get()
    assert boss.post(change_url(schedule), fields(**ONCE, timezone="Asia/Tokyo")).status_code == 302
    assert Schedule.objects.get().at == datetime(2040, 1, 1, 3, tzinfo=UTC)


def test_the_second_of_two_equal_times_is_kept_by_a_save_and_the_first_is_meant_by_typing_it(boss):
    second = datetime(2040, 10, 28, 1, 30, tzinfo=UTC)
    typed = {**ONCE, "at_0": "2040-10-28", "at_1": "02:30:00", "timezone": "Europe/Berlin"}
    schedule = make(kind="once", cron="", at=second, timezone="Europe/Berlin")
    assert boss.post(change_url(schedule), fields(**typed)).status_code == 302
    assert Schedule.objects.get().at == second
    boss.post(ADD, fields(**{**typed, "name": "typed"}))
    assert Schedule.objects.get(name="typed").at == second - timedelta(hours=1)


def test_a_vanished_task_is_shown_and_its_schedule_can_be_opened_and_paused(boss):
    schedule = make()
    Schedule._base_manager.update(task="tests.app.tasks.gone")
    assert "task missing: does not run" in boss.get(LIST).content.decode()
    page = boss.get(change_url(schedule)).content.decode()
    assert '<option value="tests.app.tasks.gone">not installed</option>' in page
    assert '<option value="tests.app.tasks.noop">Do nothing.</option>' in page
    assert "No installed app has a @task function" in page
    found = errors(boss.post(change_url(schedule), fields(task="tests.app.tasks.gone")))
    assert set(found) == {"task"}
    boss.post(f"{LIST}{schedule.pk}/pause/", {"reason": "gone"})
    assert not Schedule.objects.get().enabled


def test_a_row_changed_by_hand_can_still_be_listed_and_opened(boss):
    schedule = make()
    Schedule._base_manager.update(queue="former")
    assert "former (no setting names it)" in boss.get(change_url(schedule)).content.decode()
    Schedule._base_manager.update(cron="61 * * * *", timezone="Nowhere/Land", args="text", kwargs=[1])
    assert boss.get(LIST).status_code == boss.get(change_url(schedule)).status_code == 200


def test_an_edit_over_somebody_elses_edit_is_asked_about_first(boss):
    schedule = make()
    seen = str(boss.get(change_url(schedule)).context["adminform"].form["seen"].value())
    Schedule.objects.get().pause("incident")
    response = boss.post(change_url(schedule), fields(seen=seen))
    assert "Another user changed this schedule while you edited it" in str(errors(response)["__all__"])
    assert not Schedule.objects.get().enabled
    seen = str(response.context["adminform"].form["seen"].value())
    assert boss.post(change_url(schedule), fields(seen=seen)).status_code == 302
    assert Schedule.objects.get().enabled


def test_the_next_five_points_are_shown_in_the_zone_and_in_utc_also_beside_errors(boss):
    schedule = make(cron="30 2 * * *", timezone="Asia/Tokyo")
    page = boss.get(change_url(schedule)).content.decode()
    assert len(re.findall(r"02:30:00 JST</td><td>\w+ [\d-]+ 17:30:00</td>", page)) == 5
    assert boss.post(ADD, fields(name="", cron="15 4 * * *")).content.decode().count("04:15:00") >= 5


def test_the_preview_answers_while_one_types_and_saves_nothing(boss):
    url = f"{LIST}0/preview/"
    reply = boss.post(url, fields(name="", cron="15 4 * * *", task="tests.app.tasks.add")).json()
    assert reply["upcoming"].count(":15:00 E") == 5
    assert "add(a: int, b: int = 1)" in reply["task"]
    assert "delayq-problem" in boss.post(url, fields(cron="61 * * * *")).json()["upcoming"]
    assert client_for("view_schedule").post(url, fields()).status_code == 403
    assert not Schedule.objects.exists()
