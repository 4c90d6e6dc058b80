"""The page that says why something ran, or did not."""

import re

import pytest
from django.urls import reverse

from django_delayq.models import Run
from tests.integration.admin_pages import HOSTILE, LIST, change_url, client_for, make
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def why(client, schedule, at: str = "", status: int = 200) -> str:
    reply = client.get(f"{LIST}{schedule.pk}/why/", {"at": at} if at else {})
    assert reply.status_code == status
    return reply.content.decode()


def test_it_says_how_it_stands_and_why_a_point_ran_with_links_both_ways(boss, broker):
    schedule = make(cron=DAILY_CRON, timezone="Asia/Kolkata")
    point = make_due(broker, schedule)
    run_burst()
    run = Run.objects.get()
    assert "The newest row of the ledger:" in why(boss, schedule)
    page = why(boss, schedule, f"{point:%Y-%m-%d %H:%M}+00:00")
    assert "succeeded." in page and "1 attempt, lag" in page
    address = reverse("admin:django_delayq_run_change", args=[run.pk])
    assert address in page and f"{LIST}{schedule.pk}/why/" in boss.get(change_url(schedule)).content.decode()
    link = re.search(r'href="(/admin/django_delayq/schedule/\d+/why/[^"]*)"', boss.get(address).content.decode())
    assert link is not None and "1 attempt, lag" in boss.get(link[1]).content.decode()


def test_a_point_that_did_not_run_has_its_reason(boss, broker):
    schedule = make(cron="0 9 * * *", timezone="UTC")
    assert "The schedule did not exist then" in why(boss, schedule, "2020-01-01 09:00")


def test_what_is_no_time_is_refused_as_it_was_typed(boss, broker):
    page = why(boss, make(), HOSTILE)
    assert "is not a time. Write 2026-11-21 09:00" in page and HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_who_may_view_may_ask_but_is_not_told_where_redis_is(boss, dead_redis):
    schedule, viewer = make(), client_for("view_schedule")
    assert "127.0.0.1" not in why(viewer, schedule) and "Redis does not answer" in why(viewer, schedule)
    assert why(client_for("view_run"), schedule, status=403)
    assert boss.get(f"{LIST}{2**70}/why/").status_code == boss.get(f"{LIST}9999/why/").status_code == 404


def test_runs_are_linked_for_those_only_who_may_see_them(broker):
    schedule = make(cron=DAILY_CRON, timezone="UTC")
    point = make_due(broker, schedule)
    run_burst()
    at = f"{point:%Y-%m-%d %H:%M}"
    assert "Runs of this time" not in why(client_for("view_schedule"), schedule, at)
    assert "Runs of this time" in why(client_for("view_schedule", "view_run"), schedule, at)
