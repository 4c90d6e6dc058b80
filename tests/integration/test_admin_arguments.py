"""Inputs for a task's arguments: what they show, what they say, and which of inputs and JSON counts."""

import json
import re
from datetime import timedelta
from html import unescape

import pytest

from django_delayq.models import Schedule
from tests.integration.admin_pages import ADD, LIST, change_url, client_for, errors, fields, make

pytestmark = pytest.mark.django_db(transaction=True)
ADD_TASK, REPORT, GATHER = (f"tests.app.tasks.{name}" for name in ("add", "report", "gather"))
PREVIEW = f"{LIST}0/preview/"


def inputs_of(html) -> dict[str, str]:
    """Return the inputs for arguments on a page, and what they hold."""
    found = dict(re.findall(r'<input[^>]*name="(call[^"]+)"(?:[^>]*?value="([^"]*)")?', html))
    found |= dict(re.findall(r'<textarea[^>]*name="(call[^"]+)"[^>]*>\s*([^<]*)<', html))
    for name, options in re.findall(r'<select[^>]*name="(call[^"]+)"[^>]*>(.*?)</select>', html, re.DOTALL):
        found[name] = next(iter(re.findall(r'value="([^"]*)" selected', options)), "")
    return {name: unescape(value) for name, value in found.items()}


def sent(boss, schedule, page=None, **typed):
    """Return what the page of a schedule sends, with what is typed into it."""
    shown = inputs_of(page or boss.get(change_url(schedule)).content.decode())
    written = {"args": json.dumps(schedule.args), "kwargs": json.dumps(schedule.kwargs)}
    assert not typed.keys() - shown.keys() - written.keys()
    return fields(task=schedule.task, **written, **shown) | typed


def call_of(schedule):
    schedule.refresh_from_db()
    return schedule.args, schedule.kwargs


FULL = {
    "pages": 20, "scale": 1.5, "title": "Größe <b>", "draft": True, "since": "2026-01-31T09:00:00+01:00",
    "style": "rich", "written": "page", "recipients": ["a@example.org"], "options": {"deep": [1, None, "x\n"]},
    "api_token": "t0psecret",
}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "args", "kwargs"),
    [
        (REPORT, ["2026-01-31"], FULL),
        (REPORT, [], {"day": "2026-01-31", "scale": 5, "draft": False, "options": None, "recipients": []}),
        (ADD_TASK, [1, 2], {}),
        (ADD_TASK, [-1], {"b": 10**30}),
        (GATHER, [1], {}),
        ("tests.app.tasks.noop", [], {}),
    ],
)
def test_inputs_show_what_is_stored_and_saving_them_changes_nothing(boss, task, args, kwargs):
    schedule = make(task=task, args=args, kwargs=kwargs)
    page = boss.get(change_url(schedule)).content.decode()
    shown = inputs_of(page)
    assert json.loads(shown.pop("call_made_from")) == [task, args, kwargs]
    assert {name.removeprefix("call-") for name, text in shown.items() if text} >= kwargs.keys()
    assert boss.post(change_url(schedule), sent(boss, schedule, page)).status_code == 302
    assert call_of(schedule) == (args, kwargs)


@pytest.mark.parametrize(
    ("task", "args", "kwargs"),
    [
        (GATHER, [1, 2], {}),
        (GATHER, [1], {"more": 1}),
        (REPORT, ["20260131"], {}),
        (REPORT, ["2026-01-31"], {"title": ""}),
        (REPORT, ["2026-01-31"], {"title": "two\nlines"}),
        (REPORT, ["2026-01-31"], {"since": None}),
        (REPORT, ["2026-01-31"], {"scale": None}),
        (REPORT, ["2026-01-31"], {"recipients": None}),
    ],
)
def test_what_inputs_cannot_say_is_shown_as_json_and_saving_it_changes_nothing(boss, task, args, kwargs):
    schedule = make(task=task, args=args, kwargs=kwargs)
    page = boss.get(change_url(schedule)).content.decode()
    if inputs_of(page):  # null is JSON there
        assert kwargs == {"recipients": None}
    else:
        assert "These arguments can be written as JSON only." in page
    assert boss.post(change_url(schedule), sent(boss, schedule, page)).status_code == 302
    assert call_of(schedule) == (args, kwargs)


def test_inputs_or_json_count_whichever_was_changed(boss):
    schedule = make(task=ADD_TASK, args=[1], kwargs={"b": 2})
    for typed, wanted in (
        ({"call-b": "3"}, ([1], {"b": 3})),
        ({"kwargs": '{"b": 4}'}, ([1], {"b": 4})),
        ({"call-b": ""}, ([1], {})),
        ({"call-b": "5", "kwargs": '{"b": 5}'}, ([1], {"b": 5})),
        ({"args": "[6, 7]", "kwargs": "{}"}, ([6, 7], {})),
        ({"call-a": "8"}, ([8, 7], {})),
        ({"call-b": ""}, ([8], {})),
    ):
        assert boss.post(change_url(schedule), sent(boss, schedule, **typed)).status_code == 302, typed
        assert call_of(schedule) == wanted


def test_where_both_were_changed_and_differ_it_is_asked_and_what_was_typed_stays(boss):
    schedule = make(task=ADD_TASK, args=[1])
    reply = boss.post(change_url(schedule), sent(boss, schedule, **{"call-a": "2", "args": "[3]"}))
    assert list(errors(reply)) == ["call"]
    page = reply.content.decode()
    assert "data-differs" in page and "Change one of them only." in page
    assert (inputs_of(page)["call-a"], "[3]</textarea>" in page) == ("2", True)
    assert call_of(schedule) == ([1], {})


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"pages": " 1e3 "}, "pages: a whole number is wanted, not ' 1e3 '"),
        ({"pages": "9" * 5000}, "pages: a whole number is wanted"),
        ({"scale": "nan"}, "scale: a number or null is wanted, not 'nan'"),
        ({"scale": "1,5"}, "scale: a number or null is wanted, not '1,5'"),
        ({"since": "Tomorrow"}, "not 'Tomorrow'"),
        ({"day": "31.1.2026"}, "day: a date such as 2026-01-31 is wanted, not '31.1.2026'"),
        ({"day": ""}, "day: this argument is needed"),
        ({"style": '"Rich"'}, "style: one of 'plain', 'rich' is wanted, not 'Rich'"),
        ({"draft": "perhaps"}, "draft: true or false is wanted, not 'perhaps'"),
        ({"recipients": "a@example.org"}, "recipients: This is not JSON"),
        ({"recipients": "[5]"}, "recipients[0]: a text is wanted, not 5"),
        ({"options": "[NaN]"}, "options: This cannot be used: NaN"),
        ({"options": "[" * 60_000}, "options: This cannot be used"),
    ],
)
def test_a_refusal_stands_at_the_arguments_and_quotes_what_was_typed(boss, typed, message):
    schedule = make(task=REPORT, kwargs={"day": "2026-01-31"})
    posted = sent(boss, schedule, **{f"call-{name}": text for name, text in typed.items()})
    reply = boss.post(change_url(schedule), posted)
    found = errors(reply)
    assert (list(found), len(found["call"])) == (["call"], 1)
    assert message in found["call"][0]
    page = reply.content.decode()
    assert page.count('aria-invalid="true"') == 1
    assert inputs_of(page)["call-" + next(iter(typed))] in (*typed.values(), "")  # a select has no such option


def test_what_is_wrong_beyond_the_inputs_is_told_at_the_json(boss):
    schedule = make(task=REPORT, kwargs={"day": "2026-01-31"})
    found = errors(boss.post(change_url(schedule), sent(boss, schedule, **{"call-title": "\0"})))
    assert "NUL" in found["kwargs"][0]
    found = errors(boss.post(change_url(schedule), sent(boss, schedule, **{"call-title": "x" * 70_000})))
    assert "64 KiB" in found["kwargs"][0]


def test_inputs_of_another_task_or_of_nonsense_do_not_count(boss):
    schedule = make(task=ADD_TASK, args=[1])
    for made_from in ("", "{}", "[1]", "[" * 100_000, json.dumps([ADD_TASK, 1, 2]), json.dumps([GATHER, [1], {}])):
        posted = sent(boss, schedule) | {"call_made_from": made_from, "call-a": "9"}
        assert boss.post(change_url(schedule), posted).status_code == 302
        assert call_of(schedule) == ([1], {})
    posted = sent(boss, schedule, **{"call-a": "9"}) | {"task": "tests.app.tasks.fail", "args": '["x"]'}
    assert boss.post(change_url(schedule), posted).status_code == 302
    assert call_of(schedule) == (["x"], {})


def test_the_preview_has_the_inputs_of_the_chosen_task_and_saves_nothing(boss):
    reply = boss.post(PREVIEW, fields(task=REPORT, kwargs='{"pages": 3}')).json()
    shown = inputs_of(reply["call"])
    assert shown["call-pages"] == "3"
    assert 'placeholder="Daily report"' in reply["call"] and ">default: plain<" in reply["call"]
    assert "hunter2" not in str(reply)
    assert 'type="date"' in reply["call"]
    reply = boss.post(PREVIEW, fields(task=REPORT, kwargs='{"pages": 3}', **{**shown, "call-pages": "4"})).json()
    written = unescape(re.search(r'data-kwargs="([^"]*)"', reply["call"])[1])
    assert (json.loads(written), inputs_of(reply["call"])["call-pages"]) == ({"pages": 4}, "4")
    assert "Choose a task" in boss.post(PREVIEW, fields(task="")).json()["call"]
    assert not Schedule.objects.exists()


def test_what_a_phrase_may_mean_is_offered_beside_its_refusal(boss):
    found = errors(boss.post(ADD, fields(cron="Every weekday at 9")))
    assert "4 fields in 'Every weekday at 9'" in found["cron"][0]
    assert "Did you mean 0 9 * * 1-5: at 09:00, Monday to Friday?" in found["cron"][0]
    shown = boss.post(PREVIEW, fields(cron="Every weekday at 9")).json()["upcoming"]
    assert 'data-cron="0 9 * * 1-5"' in shown
    found = errors(boss.post(ADD, fields(cron="first monday of the month at 8")))["cron"][0]
    assert "7 fields in" in found and "Did you mean 0 8 * * 1#1: at 08:00, on the first Monday of the month?" in found
    assert "data-cron" not in boss.post(PREVIEW, fields(cron="whenever")).json()["upcoming"]
    assert "data-cron" not in boss.post(PREVIEW, fields(cron="0 9 * * 1-5")).json()["upcoming"]


def test_a_phrase_that_cron_cannot_say_leads_to_an_interval(boss):
    found = errors(boss.post(ADD, fields(cron="every 90 seconds")))["cron"][0]
    assert "This is an interval: choose that kind, and write 90s." in found
    shown = boss.post(PREVIEW, fields(cron="every 90 seconds")).json()["upcoming"]
    taken = re.search('data-cron="(.+?)"', shown)[1]
    boss.post(ADD, fields(cron=taken))
    assert Schedule.objects.values_list("kind", "cron", "every").get() == ("every", "", timedelta(seconds=90))


def test_points_have_one_column_where_the_zone_agrees_with_utc(boss):
    for zone, columns in (("UTC", 1), ("Atlantic/Reykjavik", 1), ("Europe/Riga", 2), ("Europe/London", 2)):
        shown = boss.post(PREVIEW, fields(cron="0 9 1 1,7 *", timezone=zone)).json()["upcoming"]
        assert shown.count('<th scope="col">') - 1 == columns, zone
        assert shown.count("<td>") == 5 * columns


def test_a_time_that_has_passed_is_quoted_by_the_clock_it_was_typed_by(boss):
    once = {"kind": "once", "cron": "", "at_0": "2001-01-01", "at_1": "12:00:00"}
    assert errors(boss.post(ADD, fields(**once)))["at"][0].startswith("2001-01-01 12:00:00 EET has passed")


def test_who_may_only_look_has_no_inputs(db):
    schedule = make(task=REPORT, kwargs={"day": "2026-01-31", "api_token": "t0psecret"})
    page = client_for("view_schedule").get(change_url(schedule)).content.decode()
    assert inputs_of(page) == {}
    assert "t0psecret" not in page
