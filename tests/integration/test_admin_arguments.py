"""Inputs for a task's arguments, or JSON: which of them a form has, what they show and what they say."""

import re
from datetime import timedelta
from html import unescape

import pytest

from django_delayq.models import Schedule
from tests.integration.admin_pages import ADD, LIST, change_url, errors, fields, make

pytestmark = pytest.mark.django_db(transaction=True)
ADD_TASK, REPORT, GATHER = (f"tests.app.tasks.{name}" for name in ("add", "report", "gather"))
PREVIEW = f"{LIST}0/preview/"


def inputs_of(html) -> dict[str, str]:
    """Return the inputs for arguments on a page, or the JSON, and what they hold."""
    found = dict(re.findall(r'<input[^>]*name="(call-[^"]+)"(?:[^>]*?value="([^"]*)")?', html))
    found |= dict(re.findall(r'<textarea[^>]*name="(call-[^"]+|args|kwargs)"[^>]*>\s*([^<]*)<', html))
    for name, options in re.findall(r'<select[^>]*name="(call-[^"]+)"[^>]*>(.*?)</select>', html, re.DOTALL):
        found[name] = next(iter(re.findall(r'value="([^"]*)" selected', options)), "")
    return {name: unescape(value) for name, value in found.items()}


def sent(boss, schedule, page=None, **typed):
    """Return what the page of a schedule sends, with what is typed into it."""
    shown = inputs_of(page or boss.get(change_url(schedule)).content.decode())
    assert not typed.keys() - shown.keys() - {"call_as_json"}
    posted = fields(task=schedule.task)
    del posted["args"], posted["kwargs"]
    return posted | shown | typed


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
        (REPORT, ["2026-01-31"], {"scale": None, "recipients": None}),
        (ADD_TASK, [1, 2], {}),
        (ADD_TASK, [-1], {"b": 10**30}),
        ("tests.app.tasks.noop", [], {}),
    ],
)
def test_inputs_show_what_is_stored_and_saving_them_changes_nothing(boss, task, args, kwargs):
    schedule = make(task=task, args=args, kwargs=kwargs)
    page = boss.get(change_url(schedule)).content.decode()
    shown = inputs_of(page)
    assert not shown.keys() & {"args", "kwargs"}
    assert {name.removeprefix("call-") for name, text in shown.items() if text} >= kwargs.keys()
    assert boss.post(change_url(schedule), sent(boss, schedule, page)).status_code == 302
    assert call_of(schedule) == (args, kwargs)


@pytest.mark.parametrize(
    ("task", "args", "kwargs"),
    [
        (GATHER, [1], {}),
        (GATHER, [1, 2], {}),
        (GATHER, [1], {"more": 1}),
        (REPORT, ["20260131"], {}),
        (REPORT, ["2026-01-31"], {"title": ""}),
        (REPORT, ["2026-01-31"], {"title": "two\nlines"}),
        (REPORT, ["2026-01-31"], {"since": None}),
        (REPORT, ["2026-01-31"], {"style": None}),
    ],
)
def test_what_inputs_cannot_say_is_shown_as_json_and_saving_it_changes_nothing(boss, task, args, kwargs):
    schedule = make(task=task, args=args, kwargs=kwargs)
    page = boss.get(change_url(schedule)).content.decode()
    assert inputs_of(page).keys() == {"args", "kwargs"}
    assert boss.post(change_url(schedule), sent(boss, schedule, page)).status_code == 302
    assert call_of(schedule) == (args, kwargs)


def test_what_is_typed_is_saved_and_as_many_stay_positional(boss):
    schedule = make(task=ADD_TASK, args=[1], kwargs={"b": 2})
    for typed, wanted in (
        ({"call-b": "3"}, ([1], {"b": 3})),
        ({"call-b": ""}, ([1], {})),
        ({"call-a": "8"}, ([8], {})),
    ):
        assert boss.post(change_url(schedule), sent(boss, schedule, **typed)).status_code == 302, typed
        assert call_of(schedule) == wanted
    schedule.kwargs = {"b": 2}
    schedule.save()
    posted = fields(task=ADD_TASK, args="[6, 7]")
    assert boss.post(change_url(schedule), posted).status_code == 302, "JSON that is sent counts"
    assert call_of(schedule) == ([6, 7], {})


def test_who_ticks_the_box_writes_json(boss):
    schedule = make(task=REPORT, args=["2026-01-31"])
    typed = {"call-pages": "3", "call-day": "", "call_as_json": "on"}
    reply = boss.post(change_url(schedule), sent(boss, schedule, **typed))
    assert "Nothing is saved yet" in errors(reply)["call"][0]
    page = reply.content.decode()
    assert inputs_of(page) == {"args": "[]", "kwargs": '{"pages": 3}'} and 'name="call_as_json" checked' in page
    posted = fields(task=REPORT, args="[]", kwargs='{"day": "2026-02-01", "title": ""}', call_as_json="on")
    assert boss.post(change_url(schedule), posted).status_code == 302
    assert call_of(schedule) == ([], {"day": "2026-02-01", "title": ""})
    page = boss.get(change_url(schedule)).content.decode()
    assert inputs_of(page).keys() == {"args", "kwargs"} and 'name="call_as_json" checked' in page


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"pages": " 1e3 "}, "pages must be a whole number, not 1000.0"),
        ({"pages": "9" * 5000}, "pages must be a whole number, not '9999"),
        ({"scale": "nan"}, "scale must be a number or null, not 'nan'"),
        ({"scale": "-Infinity"}, "scale must be a number or null, not '-Infinity'"),
        ({"scale": "1e400"}, "scale must be a number or null, not '1e400'"),
        ({"options": "[NaN]"}, "options: This cannot be used: NaN is not a finite number."),
        ({"scale": "five"}, "scale must be a number or null, not 'five'"),
        ({"day": "31.1.2026"}, "day must be a date such as 2026-01-31, not '31.1.2026'"),
        ({"day": ""}, "day is required"),
        ({"style": '"Rich"'}, "style must be one of 'plain', 'rich' or null, not 'Rich'"),
        ({"draft": "perhaps"}, "draft must be true or false, not 'perhaps'"),
        ({"recipients": "a@example.org"}, "recipients: This is not JSON"),
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


def test_what_is_wrong_beyond_the_inputs_and_with_the_json_is_told_there_too(boss):
    schedule = make(task=REPORT, kwargs={"day": "2026-01-31"})
    found = errors(boss.post(change_url(schedule), sent(boss, schedule, **{"call-title": "\0"})))
    assert "NUL" in found["call"][0]
    found = errors(boss.post(change_url(schedule), sent(boss, schedule, **{"call-title": "x" * 70_000})))
    assert "65,536" in found["call"][0]
    reply = boss.post(change_url(schedule), fields(task=REPORT, kwargs="{1}"))
    assert errors(reply)["call"][0].startswith("Keyword arguments: This is not JSON")
    assert inputs_of(reply.content.decode())["kwargs"] == "{1}"


def test_inputs_of_another_task_do_not_count(boss):
    schedule = make(task=ADD_TASK, args=[1])
    reply = boss.post(change_url(schedule), sent(boss, schedule) | {"task": REPORT})
    assert errors(reply)["call"] == ["day is required"]
    reply = boss.post(change_url(schedule), sent(boss, schedule) | {"task": GATHER})
    assert errors(reply)["call"][0] == "Write the arguments of this task as JSON below."
    assert inputs_of(reply.content.decode()) == {"args": "[]", "kwargs": "{}"}
    assert call_of(schedule) == ([1], {})


def test_the_preview_has_the_inputs_of_the_chosen_task_and_saves_nothing(boss):
    reply = boss.post(PREVIEW, fields(task=REPORT, kwargs='{"pages": 3}')).json()
    shown = inputs_of(reply["call"])
    assert shown["call-pages"] == "3" and "args" not in shown
    assert 'placeholder="Daily report"' in reply["call"] and ">default: plain<" in reply["call"]
    assert "hunter2" not in str(reply) and "aria-invalid" not in reply["call"]
    assert 'type="date"' in reply["call"]
    assert inputs_of(boss.post(PREVIEW, fields(task=GATHER, args="[1]")).json()["call"])["args"] == "[1]"
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
