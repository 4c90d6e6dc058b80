"""The form of a schedule in a real browser: kinds, inputs for arguments, words and offers while one types."""

import pytest

from django_delayq.models import Schedule
from tests.acceptance.support import wait_until
from tests.browser.test_admin import LOOKS, look_at, page_of, violations
from tests.integration.admin_pages import ADD, change_url, make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.everything]
REPORT = "tests.app.tasks.report"


@pytest.fixture
def page(broker, chromium, live_server):
    """A page that must not complain; `open` leads to an address of the site."""
    with page_of(chromium, live_server, "wide", "light") as (found, said):
        found.open = lambda address: found.goto(live_server.url + address)
        yield found
        assert not said


def wait_for(page, selector, text):
    wait_until(lambda: text in page.inner_text(selector), 30, text)


def choose(page, task):
    """Choose a task, and wait for its inputs."""
    page.fill("#id_task", task)
    page.wait_for_selector(f"#delayq-call[data-task='{task}']")


def shown(page, *names):
    return [page.is_visible(f"#id_{name}") for name in names]


def save(page):
    with page.expect_navigation():
        page.click("input[name=_save]")


def test_only_the_fields_of_the_chosen_kind_are_there(page):
    page.open(ADD)
    fields = ("cron", "every", "every_from", "at_0")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert (shown(page, *fields), shown(page, "dst_gap")) == ([True, False, False, False], [True])
    page.check("input[name=kind][value=every]")
    assert (shown(page, *fields), shown(page, "dst_gap")) == ([False, True, True, False], [False])
    page.check("input[name=kind][value=once]")
    assert shown(page, *fields) == [False, False, False, True]
    page.fill("#id_at_0", "2040-01-01")
    page.check("input[name=kind][value=every]")
    page.fill("#id_every", "15m")
    page.fill("#id_name", "s")
    choose(page, "tests.app.tasks.noop")
    save(page)
    assert (Schedule.objects.get().kind, Schedule.objects.get().at) == ("every", None)


def test_arguments_are_filled_in_and_saved_as_json(page):
    page.open(ADD)
    page.fill("#id_name", "s")
    page.fill("#id_cron", "0 9 * * *")
    assert shown(page, "args", "kwargs") == [True, True]
    choose(page, REPORT)
    assert shown(page, "args", "kwargs") == [False, False]
    assert page.get_attribute("#id_call-pages", "placeholder") == "10"
    assert page.get_attribute("#id_call-api_token", "placeholder") == "********"
    page.fill("#id_call-day", "2026-01-31")
    page.fill("#id_call-pages", "abc")
    page.select_option("#id_call-draft", label="yes")
    page.select_option("#id_call-written", label="PAGE")
    page.fill("#id_call-recipients", '["a@example.org"]')
    save(page)
    assert page.inner_text(".field-call .errorlist") == "pages must be a whole number, not 'abc'"
    assert page.input_value("#id_call-pages") == "abc"
    page.fill("#id_call-pages", "20")
    save(page)
    schedule = Schedule.objects.get()
    assert schedule.args == []
    assert schedule.kwargs == {
        "day": "2026-01-31", "pages": 20, "draft": True, "written": "page", "recipients": ["a@example.org"]
    }  # fmt: skip


def test_arguments_can_be_written_as_json_and_shown_as_inputs_again(page):
    schedule = make(task="tests.app.tasks.add", args=[1], kwargs={"b": 2})
    page.open(change_url(schedule))
    assert (page.input_value("#id_call-a"), page.input_value("#id_call-b")) == ("1", "2")
    page.fill("#id_call-b", "3")
    page.check("text=As JSON")
    page.wait_for_selector("#id_kwargs")
    assert (page.input_value("#id_args"), page.input_value("#id_kwargs")) == ("[1]", '{"b": 3}')
    assert page.locator("#id_call-a").count() == 0
    page.fill("#id_kwargs", '{"b": 4}')
    page.uncheck("text=As JSON")
    page.wait_for_selector("#id_call-b")
    assert page.input_value("#id_call-b") == "4"
    page.check("text=As JSON")
    page.wait_for_selector("#id_args")
    page.fill("#id_args", "[5]")
    save(page)
    schedule.refresh_from_db()
    assert (schedule.args, schedule.kwargs) == ([5], {"b": 4})


def test_another_task_has_other_inputs(page):
    page.open(change_url(make(task="tests.app.tasks.add", args=[1])))
    choose(page, "tests.app.tasks.fail")
    assert page.locator(".delayq-argument").count() == 1
    assert "Fail." in page.inner_text("#delayq-task")
    choose(page, "tests.app.tasks.gather")
    assert shown(page, "args", "kwargs") == [True, True]


def test_cron_is_told_in_words_as_it_is_typed_and_what_is_meant_is_offered(page):
    page.open(ADD)
    page.fill("#id_cron", "*/15 * * * 1-5")
    wait_for(page, "#delayq-upcoming", "very 15 minutes, Monday to Friday")
    assert ":15:00" in page.inner_text("#delayq-upcoming"), "with its next points"
    page.fill("#id_cron", "every weekday at 9")
    wait_for(page, "#delayq-upcoming", "'every weekday at 9'")
    assert "Did you mean 0 9 * * 1-5: at 09:00, Monday to Friday?" in page.inner_text("#delayq-upcoming")
    page.click("text=Use 0 9 * * 1-5")
    assert page.input_value("#id_cron") == "0 9 * * 1-5"
    wait_for(page, "#delayq-upcoming", "t 09:00, Monday to Friday")


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_the_form_can_be_read_with_inputs_errors_and_an_offer(broker, chromium, live_server, size, scheme):
    with page_of(chromium, live_server, size, scheme) as (page, said):
        page.goto(live_server.url + "/admin/auth/user/add/")
        stock = violations(page).keys()
        page.goto(live_server.url + ADD)
        choose(page, REPORT)
        page.fill("#id_call-pages", "abc")
        page.fill("#id_cron", "on the 1st at noon")
        wait_for(page, "#delayq-upcoming", "Use 0 12 1 * *")
        page.evaluate("document.getElementById('schedule_form').noValidate = true")
        save(page)
        wait_for(page, "#delayq-upcoming", "Use 0 12 1 * *")
        across = look_at(page, f"form-{size}-{scheme}")
        assert (across <= 0, violations(page).keys() - stock, said) == (True, set(), [])


def test_without_javascript_there_are_inputs_and_the_box_leads_to_json(broker, chromium, live_server):
    schedule = make(task="tests.app.tasks.add", args=[1])
    with page_of(chromium, live_server, "wide", "light") as (signed_in, _said):
        cookies = signed_in.context.cookies()
    context = chromium.new_context(java_script_enabled=False)
    context.add_cookies(cookies)
    page = context.new_page()
    page.goto(live_server.url + change_url(schedule))
    assert shown(page, "call-b", "kwargs", "cron", "every", "at_0") == [True, False, True, True, True]
    page.fill("#id_call-b", "3")
    save(page)
    page.goto(live_server.url + change_url(schedule))
    page.check("text=As JSON")
    save(page)
    page.fill("#id_args", "[2]")
    save(page)
    context.close()
    schedule.refresh_from_db()
    assert (schedule.args, schedule.kwargs) == ([2], {"b": 3})
