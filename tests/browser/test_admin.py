"""Each page of the admin in a real browser: narrow and wide, light and dark, under a strict policy, no error said."""

from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib.resources import files

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_delayq import actions, sync
from django_delayq.models import Run
from django_delayq.monitoring import failures
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.browser.conftest import PICTURES
from tests.integration.admin_pages import client_for, make, make_job
from tests.jobs.support import row as row_of
from tests.support import run_burst

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.everything]
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
#: Each size and each scheme once: the width of a page does not depend on its colours.
LOOKS = (("wide", "light"), ("narrow", "dark"))
#: What sticks out of the page at its right.
TOO_WIDE = """[...document.querySelectorAll('#container *')].filter(
    each => each.getBoundingClientRect().right > document.documentElement.clientWidth
        && !each.parentElement.closest('.delayq-wide, .delayq-runs, .delayq-scroll, .results')
).slice(-4).map(each => each.outerHTML.slice(0, 90) + ' ' + each.getBoundingClientRect().right)"""
#: Stock pages: what they violate is Django's.
STOCK = ("/admin/auth/user/", "/admin/auth/user/add/", "/admin/")


@cache
def axe():
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


@pytest.fixture
def site(broker, live_server):
    """A project in use, and the addresses of its pages."""

    def address(name, *keys):
        return reverse(f"admin:django_delayq_{name}", args=keys)

    now = utcnow()
    rows = [make("every morning", description="with words"), make("failing", task="tests.app.tasks.fail")]
    for number in range(30):
        status = "failed" if number % 3 == 0 else "succeeded"
        due = now - timedelta(minutes=7 * number)
        run = Run.build_for(
            rows[number % 2], due, status=status, attempt=1, worker="host:1", claimed_at=due, started_at=due,
            finished_at=due + timedelta(seconds=number), error="Traceback\nRuntimeError: no luck" * (number % 3 == 0),
            reason="RuntimeError: no luck" * (number % 3 == 0),
        )  # fmt: skip
        run.save()
    running = Run.build_for(
        rows[0], now + timedelta(minutes=1), status="running", worker="host:1", claimed_at=now, started_at=now
    )
    running.save()
    sync.check_layout(broker)
    sync.sweep_fully(broker)
    tasks.say.enqueue("done")
    run_burst()
    said = tasks.say.using(run_after=timedelta(hours=1), max_attempts=3, unique_key="k", priority=5)
    job, died = row_of(said.enqueue("something", password="x")), make_job(7)
    make_job(status="running", worker="host:1")
    held = actions.pause("mail", reason="the provider is down", by="ann")
    schedule, failed = rows[0].pk, Run.objects.filter(status="failed").first()
    digest = failures.compute_digest("run", failed.task, failures.compute_fingerprint(failed.reason))
    rows[0].cron, rows[0].task, rows[0].args, rows[0].changed_by = "30 9 * * 1-5", "tests.app.tasks.add", [17], "ann"
    rows[0].save()
    rows[0].pause("holidays", by="bob")
    ran = Run.objects.filter(schedule=rows[0], status="succeeded").first()
    client_for(superuser=True).post(address("control_add"), {"kind": "queue", "name": "default", "most": "3"})

    return {
        "index": "/admin/",
        "overview": address("overview_changelist"), "overview 7d": address("overview_changelist") + "?span=7d",
        "now": address("overview_now"), "stop": address("run_stop", running.pk),
        "schedules": address("schedule_changelist"), "schedule": address("schedule_change", schedule),
        "add": address("schedule_add"), "why": address("schedule_why", schedule) + "?at=09:00",
        "pause": address("schedule_pause", schedule), "backfill": address("schedule_backfill", schedule),
        "delete": address("schedule_delete", schedule), "history": address("schedule_history", schedule),
        "runs": address("run_changelist"), "run": address("run_change", failed.pk),
        "jobs": address("run_changelist") + "?origin__exact=job&q=tests.app",
        "job": address("run_change", job.pk), "failed job": address("run_change", died.pk),
        "cancel": address("run_cancel", job.pk),
        "controls": address("control_changelist"), "control": address("control_change", held.pk),
        "failures": address("run_failures"), "failures 7d": address("run_failures") + "?span=7d",
        "runs of a group": address("run_changelist") + f"?error=7d.{digest}",
        "coming": address("overview_coming"), "coming of a queue": address("overview_coming") + "?queue=default",
        "ask": address("overview_ask"), "ask, a time": address("overview_ask") + f"?at={quote(str(now)[:16])}",
        "audit": address("auditentry_changelist"), "run before an edit": address("run_change", ran.pk),
        "restore": address("schedule_restore", schedule) + f"?definition={rows[0].definitions.order_by('pk')[0].pk}",
    }  # fmt: skip


@contextmanager
def page_of(chromium, live_server, size, scheme):
    """Yield a page of somebody who may do everything, and what it complains of."""
    width, height = SIZES[size]
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=False)
    cookie = client_for(superuser=True).cookies["sessionid"]
    context.add_cookies([{"name": "sessionid", "value": cookie.value, "url": live_server.url}])
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    page.on("response", lambda reply: said.append(f"{reply.status} {reply.url}") if reply.status >= 400 else None)
    yield page, said
    context.close()


def look_at(page, name):
    """Leave a picture where they are wanted; return by how many px the page is too wide."""
    if PICTURES.name:
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"{name.replace(' ', '-')}.png", full_page=True)
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def violations(page):
    """Return the rules of axe-core that a page violates, with what does so."""
    page.evaluate(axe())  # past the policy, as it is a tool's
    found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa']})")["violations"]
    return {
        item["id"]: [
            f"{node['html'][:150]} {node['any'][0]['message'] if node['any'] else ''}" for node in item["nodes"]
        ]
        for item in found
    }


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_every_page_is_readable_and_says_no_error(chromium, live_server, site, size, scheme):
    wrong = []
    with page_of(chromium, live_server, size, scheme) as (page, said):
        stock = set()
        for address in STOCK:
            page.goto(live_server.url + address)
            stock |= violations(page).keys()
        wrong += [f"stock: {text}" for text in said]
        for name, address in site.items():
            said.clear()
            reply = page.goto(live_server.url + address)
            across = look_at(page, f"{name}-{size}-{scheme}")
            assert reply.status == 200, name
            wrong += [f"{name}: {text}" for text in said]
            if across > 0:
                wrong.append(f"{name}: {across} px too wide: {page.evaluate(TOO_WIDE)}")
            wrong += [f"{name}: {rule}: {html}" for rule, html in violations(page).items() if rule not in stock]
    assert not wrong, "\n".join(wrong)


def test_a_page_that_needs_more_than_the_policy_allows_is_seen(chromium, live_server, site):
    with page_of(chromium, live_server, "wide", "light") as (page, said):
        page.goto(live_server.url + site["overview"])
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')")

        def complained():
            page.evaluate("0")  # so that what was said meanwhile is heard
            return any("Content Security Policy" in text for text in said)

        wait_until(complained, 30, "a complaint")


def test_the_overview_refreshes_itself_in_place(chromium, live_server, site):
    with page_of(chromium, live_server, "wide", "light") as (page, said):
        page.goto(live_server.url + site["overview"])
        assert "paused (the provider is down" in page.inner_text("#delayq-live")
        actions.resume("mail")
        wait_until(lambda: "provider" not in page.inner_text("#delayq-live"), 30, "a refreshed page")
        assert not said


def test_a_button_copies_a_traceback_and_is_not_there_without_javascript(chromium, live_server, site):
    failed = Run.objects.filter(status="failed").first()
    failed.outputs.create(attempt=1, text="printed <b>so</b>")
    with page_of(chromium, live_server, "wide", "light") as (page, said):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(live_server.url + site["run"])
        for field, text in (("error_column", failed.error), ("output_column", "printed <b>so</b>")):
            button = page.locator(f".field-{field} .delayq-copy")
            button.click()
            wait_until(lambda button=button: button.inner_text() == "Copied", 5, "the button to say so")
            assert page.evaluate("navigator.clipboard.readText()") == text
        assert page.locator(".field-key_column .delayq-copy, .field-id_column .delayq-copy").count() == 1 and not said
    assert 'class="delayq-copy"' not in client_for(superuser=True).get(site["run"]).content.decode()
