"""The schedule list, form and actions, through the test client, with a real Redis and with a dead one."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_delayq import mirror
from django_delayq.broker import keys
from django_delayq.models import Condition, Origin, Run, Schedule, ScheduleState, Status
from django_delayq.timing import to_ms

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/django_delayq/schedule/"
ADD = f"{LIST}add/"
HOSTILE = "<script>alert(1)</script>"


def client_for(*codenames: str, superuser: bool = False) -> Client:
    """Return a logged-in client with these permissions."""
    user = User.objects.create_user(f"u{User.objects.count()}", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def boss() -> Client:
    return client_for(superuser=True)


def make(name: str = "s", **values: object) -> Schedule:
    return Schedule.objects.create(
        **{"name": name, "task": "tests.app.tasks.noop", "kind": "cron", "cron": "0 9 * * *", **values}
    )


def fields(**values: str) -> dict[str, str]:
    """Return what the add form posts for a valid cron schedule, changed by `values`."""
    return {
        "name": "s", "description": "", "task": "tests.app.tasks.noop", "args": "[]", "kwargs": "{}", "kind": "cron",
        "cron": "0 9 * * *", "every": "", "every_from": "due", "at_0": "", "at_1": "", "timezone": "Europe/Riga",
        "start_at_0": "", "start_at_1": "", "end_at_0": "", "end_at_1": "", "max_runs": "", "queue": "default",
        "enabled": "on", "pause_reason": "", "overlap": "skip", "missed": "latest", "grace": "", "catch_up_window": "",
        "max_catch_up": "100", "jitter": "", "max_attempts": "1", "backoff": "10s", "dst_gap": "run_after",
        "dst_overlap": "once", **values,
    }  # fmt: skip


def errors(response) -> dict[str, list[str]]:
    assert response.status_code == 200
    return dict(response.context["adminform"].form.errors)


def change_url(schedule: Schedule) -> str:
    return f"{LIST}{schedule.pk}/change/"


def texts(response) -> list[str]:
    return [str(message) for message in response.context["messages"]]


@pytest.fixture
def dead_redis(settings):
    """Point the alias to a port where nothing listens."""
    caches = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    good = settings.CACHES
    settings.CACHES = caches
    yield
    settings.CACHES = good


# The list


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
    place = broker.place_of(f"s{late.pk}", "default")
    due, point, _generation, lease = keys.shard_keys(broker.config.prefix, place)[:4]
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
    point = keys.shard_keys(broker.config.prefix, broker.place_of(f"s{schedule.pk}", "default"))[1]
    for garbage in ("9" * 300, "nan", "x", "999999999999999999"):
        broker.client.hset(point, f"s{schedule.pk}", garbage)
        assert boss.get(LIST).status_code == 200
    broker.client.delete(point)
    broker.client.set(point, "foreign")
    assert "Redis does not answer" in boss.get(LIST).content.decode()


def test_without_redis_the_list_shows_the_databases_knowledge_and_one_banner(boss, dead_redis):
    make("a"), make("b")
    ScheduleState.objects.bulk_create(
        [
            ScheduleState(schedule=row, next_due_at=datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC))
            for row in Schedule.objects.all()
        ],
        ignore_conflicts=True,
    )
    page = boss.get(LIST).content.decode()
    assert page.count("2031-05-06 07:08:09</time>") == 2
    assert page.count('class="delayq-banner"') == 1
    assert page.count('title="Saved in the database, but Redis has not seen it') == 2


def test_a_project_that_does_not_mirror_sees_no_warnings(boss, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    make()
    page = boss.get(LIST).content.decode()
    assert "delayq-banner" not in page
    assert "Redis has not seen it" not in page


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


# The form


def test_a_saved_schedule_is_mirrored_and_has_its_point_in_redis(boss, broker):
    response = boss.post(ADD, fields(args="", kwargs="", backoff="1m 30s", grace="PT15M"), follow=True)
    schedule = Schedule.objects.get()
    assert (schedule.args, schedule.kwargs) == ([], {})
    assert (schedule.backoff, schedule.grace, schedule.jitter) == (
        timedelta(seconds=90), timedelta(minutes=15), timedelta(0),
    )  # fmt: skip
    assert schedule.generation == schedule.synced_generation
    assert broker.views([(f"s{schedule.pk}", "default")])[0].point_ms is not None
    assert len(texts(response)) == 1


def test_without_redis_a_save_succeeds_within_a_second_and_says_so(boss, dead_redis):
    begun = datetime.now(UTC)
    response = boss.post(ADD, fields(), follow=True)
    assert datetime.now(UTC) - begun < timedelta(seconds=1)
    assert Schedule.objects.count() == 1
    assert [text for text in texts(response) if "not yet mirrored" in text] == [
        "Saved, but not yet mirrored to Redis; the workers will catch up."
    ]
    page = boss.get(change_url(Schedule.objects.get())).content.decode()
    assert "does not answer" in page


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
        ({"kind": "every", "cron": "", "every": "999999999999d"}, "every", "at most"),
        ({"kind": "once", "cron": "", "at_0": "2001-01-01", "at_1": "00:00:00"}, "at", "has passed"),
        ({"timezone": "Europe/Rigga"}, "timezone", "Europe/Riga"),
        ({"end_at_0": "2001-01-01", "end_at_1": "00:00:00"}, "end_at", "no due point"),
        ({"task": "os.system"}, "task", "valid choice"),
        ({"queue": "nowhere"}, "queue", "valid choice"),
        ({"task": "tests.app.tasks.add"}, "args", "add(a: int"),
        ({"args": "[1"}, "args", "not JSON"),
        ({"task": "tests.app.tasks.add", "kwargs": "{a: 1}"}, "kwargs", "not JSON"),
        ({"args": "['a']"}, "args", "double quotes"),
        ({"args": "[NaN]"}, "args", "NaN"),
        ({"args": "[1e999]"}, "args", "not plain JSON"),
        ({"args": "{}"}, "args", "must be a JSON list"),
        ({"args": "[" * 60_000}, "args", "nested"),
        ({"args": f"[{'9' * 5000}]"}, "args", "cannot be used"),
        ({"args": '["\\u0000"]'}, "args", "NUL"),
        ({"args": f'["{"x" * 70_000}"]'}, "args", "64 KiB"),
        ({"kwargs": "[]"}, "kwargs", "must be a JSON object"),
        ({"kwargs": '{"a": Infinity}'}, "kwargs", "Infinity"),
        ({"jitter": "-5s"}, "jitter", "is not a duration"),
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


def test_opening_and_saving_a_form_changes_nothing_it_cannot_show(boss):
    at = datetime(2040, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    schedule = make(
        kind="once", cron="", at=at, start_at=at - timedelta(days=1), grace=timedelta(milliseconds=1500),
        jitter=timedelta(microseconds=7), task="tests.app.tasks.add", args=[1], kwargs={"b": 2},
    )  # fmt: skip
    form = boss.get(change_url(schedule)).context["adminform"].form
    posted = {}
    for bound in form:
        value = bound.value()
        if bound.name in ("at", "start_at", "end_at"):
            shown = form[bound.name].field.widget.decompress(value) if value else ["", ""]
            posted[f"{bound.name}_0"], posted[f"{bound.name}_1"] = (str(part) for part in shown)
        elif value is not None and value is not False:
            posted[bound.name] = "on" if value is True else str(value)
    assert boss.post(change_url(schedule), posted).status_code == 302
    again = Schedule.objects.get()
    for name in ("at", "start_at", "grace", "jitter", "args", "kwargs", "effective_from", "enabled"):
        assert getattr(again, name) == getattr(schedule, name), name
    assert LogEntry.objects.get().get_change_message() == "No fields changed."


@pytest.mark.parametrize("use_tz", [True, False])
def test_instants_are_typed_and_shown_in_the_current_zone(boss, settings, use_tz):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
    boss.post(ADD, fields(kind="once", cron="", at_0="2040-01-01", at_1="12:00:00"))
    schedule = Schedule.objects.get()
    assert schedule.at == datetime(2040, 1, 1, 3, tzinfo=UTC)
    page = boss.get(change_url(schedule)).content.decode()
    assert 'value="12:00:00"' in page and 'value="2040-01-01"' in page
    assert "2040-01-01 12:00:00</time>" in boss.get(LIST).content.decode()
    values = fields(
        kind="once", cron="", at_0="2040-01-01", at_1="12:00:00", start_at_0="2039-01-01", start_at_1="00:00"
    )
    assert boss.post(change_url(schedule), values).status_code == 302
    assert Schedule.objects.get().at == schedule.at


def test_a_vanished_task_is_shown_and_its_schedule_can_be_opened_and_paused(boss):
    schedule = make()
    Schedule._base_manager.update(task="tests.app.tasks.gone")
    assert "task not installed" in boss.get(LIST).content.decode()
    page = boss.get(change_url(schedule)).content.decode()
    assert "tests.app.tasks.gone (not installed)" in page
    assert "No installed app has a @task function" in page
    found = errors(boss.post(change_url(schedule), fields(task="tests.app.tasks.gone")))
    assert set(found) == {"task"}
    boss.post(f"{LIST}{schedule.pk}/pause/", {"reason": "gone"})
    assert not Schedule.objects.get().enabled


def test_a_queue_that_no_setting_names_any_more_is_shown(boss):
    schedule = make()
    Schedule._base_manager.update(queue="former")
    assert "former (no setting names it)" in boss.get(change_url(schedule)).content.decode()


def test_a_row_broken_by_hand_can_still_be_listed_and_opened(boss):
    schedule = make()
    Schedule._base_manager.update(cron="61 * * * *", timezone="Nowhere/Land", args="text", kwargs=[1])
    assert boss.get(LIST).status_code == 200
    assert boss.get(change_url(schedule)).status_code == 200


def test_an_edit_over_somebody_elses_edit_is_asked_about_first(boss):
    schedule = make()
    seen = str(boss.get(change_url(schedule)).context["adminform"].form["seen"].value())
    Schedule.objects.get().pause("incident")
    response = boss.post(change_url(schedule), fields(seen=seen))
    assert "Somebody changed this schedule" in str(errors(response)["__all__"])
    assert not Schedule.objects.get().enabled
    seen = str(response.context["adminform"].form["seen"].value())
    assert boss.post(change_url(schedule), fields(seen=seen)).status_code == 302
    assert Schedule.objects.get().enabled


def test_the_next_five_points_are_shown_in_the_zone_and_in_utc(boss):
    schedule = make(cron="30 2 * * *", timezone="Asia/Tokyo")
    page = boss.get(change_url(schedule)).content.decode()
    assert len(re.findall(r"02:30:00 JST</td><td>\w+ [\d-]+ 17:30:00</td>", page)) == 5


def test_the_points_are_shown_beside_the_errors_of_a_new_schedule(boss):
    page = boss.post(ADD, fields(name="", cron="15 4 * * *")).content.decode()
    assert page.count("04:15:00") >= 5


def test_the_preview_answers_while_one_types_and_saves_nothing(boss):
    url = f"{LIST}0/preview/"
    reply = boss.post(url, fields(name="", cron="15 4 * * *", task="tests.app.tasks.add")).json()
    assert reply["upcoming"].count(":15:00 E") == 5
    assert "add(a: int, b: int = 1)" in reply["task"]
    assert "delayq-problem" in boss.post(url, fields(cron="61 * * * *")).json()["upcoming"]
    assert boss.get(url).status_code == 405
    assert client_for("view_schedule").post(url, fields()).status_code == 403
    assert not Schedule.objects.exists()


def test_max_runs_and_pauses_are_told_beside_the_points(boss):
    schedule = make(max_runs=2, enabled=False)
    page = boss.get(change_url(schedule)).content.decode()
    assert page.count("09:00:00 UTC</td>") == 2
    assert "none of these will run" in page


# The actions


def test_run_now_orders_one_run_and_links_to_it(boss):
    schedule = make(enabled=False)
    response = boss.post(f"{LIST}{schedule.pk}/run-now/", follow=True)
    run = Run.objects.get()
    assert (run.origin, run.status, run.schedule_id) == (Origin.MANUAL, Status.QUEUED, schedule.pk)
    assert len(texts(response)) == 1
    assert reverse("admin:django_delayq_run_change", args=[run.pk]) in texts(response)[0]


def test_pause_asks_for_a_reason_and_resume_takes_it_away(boss):
    schedule = make()
    page = boss.get(f"{LIST}{schedule.pk}/pause/").content.decode()
    assert "<label" in page and Schedule.objects.get().enabled
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


def test_a_reason_that_is_too_long_is_refused(boss):
    schedule = make()
    response = boss.post(f"{LIST}{schedule.pk}/pause/", {"reason": "x" * 201})
    assert response.status_code == 200
    assert Schedule.objects.get().enabled


@pytest.mark.parametrize("across", ["0", "1"])
def test_the_lists_actions_do_the_same_to_many(boss, across):
    chosen = [make("a").pk, make("b").pk]
    other = make("other").pk
    post = {"_selected_action": chosen, "select_across": across, "index": "0"}
    everything = {*chosen, other} if across == "1" else set(chosen)

    def act(**values: str):
        return boss.post(LIST, {**post, **values}, follow=True)

    page = act(action="pause")
    hidden = page.context["hidden"]
    assert Schedule.objects.filter(enabled=True).count() == 3
    again: dict[str, list[object]] = {}
    for name, value in hidden:
        again.setdefault(name, []).append(value)
    response = boss.post(LIST, {**again, "apply": "1", "reason": "storm"}, follow=True)
    assert len(texts(response)) == 1
    assert {row.pk for row in Schedule.objects.paused()} == everything
    assert len(texts(act(action="resume"))) == 1
    assert not Schedule.objects.paused().exists()
    assert len(texts(act(action="run_now"))) == 1
    assert {run.schedule_id for run in Run.objects.all()} == everything


def test_writes_are_posts_with_a_csrf_token_and_the_change_permission(boss):
    schedule = make()
    viewer = client_for("view_schedule")
    for action in ("run-now", "resume"):
        assert boss.get(f"{LIST}{schedule.pk}/{action}/").status_code == 405
    for action in ("run-now", "pause", "resume"):
        url = f"{LIST}{schedule.pk}/{action}/"
        assert viewer.post(url, {"reason": ""}).status_code == 403
        assert Client().post(url).status_code == 302  # to the login
        assert boss.post(f"{LIST}999/{action}/", {"reason": ""}).status_code == 404
        strict = Client(enforce_csrf_checks=True)
        strict.cookies = boss.cookies
        assert strict.post(url, {"reason": ""}).status_code == 403
    viewer.post(LIST, {"action": "run_now", "_selected_action": [schedule.pk]})
    assert not Run.objects.exists()
    assert Schedule.objects.get().enabled


def test_who_may_only_look_sees_no_buttons(boss):
    schedule = make()
    buttons = (f"{schedule.pk}/run-now/", f"{schedule.pk}/pause/")
    assert all(button in boss.get(change_url(schedule)).content.decode() for button in buttons)
    viewer = client_for("view_schedule")
    page = viewer.get(change_url(schedule)).content.decode()
    assert "At a glance" in page
    assert not any(button in page for button in buttons)
    assert 'value="run_now"' not in viewer.get(LIST).content.decode()


def test_deleting_in_the_admin_needs_nothing_but_the_permission_and_leaves_redis(boss, broker):
    schedule = make()
    Run.objects.create(
        schedule_id=schedule.pk, schedule_name="s", task="t", queue="default", generation=1, due_at=datetime.now(UTC),
        status="succeeded",
    )  # fmt: skip
    deleter = client_for("view_schedule", "delete_schedule")
    assert deleter.post(f"{LIST}{schedule.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Schedule.objects.exists()
    assert Run.objects.count() == 1
    assert broker.views([(f"s{schedule.pk}", "default")])[0].score_ms is None


# What people type


def test_hostile_texts_are_escaped_everywhere(boss, monkeypatch):
    from tests.app import tasks

    schedule = make(HOSTILE, description=HOSTILE, enabled=False, pause_reason=HOSTILE)
    ScheduleState.objects.update_or_create(
        schedule=schedule, defaults={"condition": Condition.PARKED, "condition_reason": HOSTILE, "last_status": "<b>"}
    )
    monkeypatch.setattr(tasks.noop.func, "__doc__", HOSTILE)
    boss.post(f"{LIST}{schedule.pk}/run-now/")
    Schedule._base_manager.update(enabled=True)
    urls = [LIST, f"{LIST}?q={HOSTILE}", change_url(schedule), f"{LIST}{schedule.pk}/pause/", ADD]
    for url in [*urls, f"{LIST}{schedule.pk}/history/", f"{LIST}{schedule.pk}/delete/"]:
        page = boss.get(url).content.decode()
        assert HOSTILE not in page
    page = boss.post(LIST, {"action": "pause", "_selected_action": [schedule.pk]}).content.decode()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


def test_no_page_needs_inline_script_or_style(boss):
    schedule = make()
    for url in (LIST, ADD, change_url(schedule), f"{LIST}{schedule.pk}/pause/", "/admin/django_delayq/run/"):
        page = boss.get(url).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>\s*\S", page), url
        assert "<style" not in page, url
        assert not re.search(r"\s(style|on\w+)=\"", page), url
