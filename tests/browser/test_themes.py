"""The admin under DELAYQ_TEST_THEME: every page opens, its tools work, and nothing sticks out."""

import pytest
from django.conf import settings
from django.urls import reverse

from django_delayq.models import Origin, Run, Schedule
from tests.browser.test_admin import TOO_WIDE, look_at, page_of, site  # noqa: F401 - a fixture

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.everything]


def test_every_page_opens(chromium, live_server, site):  # noqa: F811
    wrong = []
    with page_of(chromium, live_server, "wide", "light") as (page, _said):
        page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
        for name, address in site.items():
            reply = page.goto(live_server.url + address)
            assert reply.status == 200, name
            across = look_at(page, f"{settings.THEME}-{name}")
            if across > 0:
                wrong.append(f"{name}: {across} px too wide: {page.evaluate(TOO_WIDE)}")
    assert not wrong, "\n".join(wrong)


def test_tools_do_what_they_say_and_save_nothing_and_the_form_saves(chromium, live_server, site):  # noqa: F811
    schedule = Schedule.objects.get(name="failing")
    with page_of(chromium, live_server, "wide", "light") as (page, _said):
        page.goto(live_server.url + reverse("admin:django_delayq_schedule_change", args=[schedule.pk]))
        page.fill("#id_name", "typed, not saved")
        page.get_by_text("Run now…").first.click()
        page.wait_for_url("**/run-now/")
        page.locator("[name=apply]").first.click()
        page.wait_for_url("**/change/")
        page.fill("#id_description", "by hand")
        page.locator("[name=_save]").first.click()
        page.wait_for_url("**/schedule/")
    schedule.refresh_from_db()
    assert (schedule.name, schedule.description) == ("failing", "by hand")
    assert Run.objects.filter(schedule_id=schedule.pk, origin=Origin.MANUAL).count() == 1
