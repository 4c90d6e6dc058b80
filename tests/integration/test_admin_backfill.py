"""The page behind “Backfill…”: shows what it would order, orders it by a POST; the rest is `orders`."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq.models import Origin, Run, Schedule
from tests.integration.admin_pages import LIST, change_url, make, texts

pytestmark = pytest.mark.django_db(transaction=True)

DAY = datetime(2026, 3, 10, tzinfo=UTC)
TIME = {"start_0": "2026-03-10", "start_1": "00:00", "end_0": "2026-03-10", "end_1": "03:00:00"}


def url(schedule: Schedule) -> str:
    return f"{LIST}{schedule.pk}/backfill/"


def hourly(**values: object) -> Schedule:
    return make(cron="0 * * * *", **values)


def ran(schedule: Schedule, hour: int, status: str, origin: str = "due") -> None:
    Run.objects.create(
        schedule_id=schedule.pk, schedule_name="s", task="t", queue="default", generation=1, origin=origin,
        due_at=DAY + timedelta(hours=hour), status=status,
    )  # fmt: skip


def test_the_page_asks_for_a_time_then_shows_the_points_and_writes_nothing(boss):
    schedule = hourly(timezone="Europe/Riga")
    ran(schedule, 0, "succeeded")
    ran(schedule, 1, "skipped")
    ran(schedule, 2, "failed", "backfill")
    empty = boss.get(url(schedule)).content.decode()
    assert 'type="date"' in empty and 'method="post"' not in empty.split('id="content"')[1]
    page = boss.get(url(schedule), TIME).content.decode()
    assert "2 runs to order" in page and "2 points are left out" in page
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
    assert "4 runs of “s” are ordered" in texts(response)[0]
    assert f"?schedule__id__exact={schedule.pk}&amp;origin__exact=backfill" in texts(response)[0]
    runs = Run.objects.order_by("due_at")
    points = [(Origin.BACKFILL, DAY + timedelta(hours=hour)) for hour in range(4)]
    assert [(run.origin, run.due_at) for run in runs] == points
    assert all(view.score_ms is not None for view in broker.views([(f"j{run.pk}", "default") for run in runs]))
    assert LogEntry.objects.get().get_change_message() == (
        "Backfill: 4 runs. 2026-03-10 00:00:00 – 2026-03-10 03:00:00 UTC"
    )
    again = boss.post(url(schedule), hidden, follow=True)
    assert texts(again) == ["There is nothing left to run in this time."]
    assert Run.objects.count() == 4


def test_a_time_without_points_offers_no_order(boss):
    schedule = hourly()
    page = boss.get(url(schedule), {**TIME, "end_1": "00:00"}).content.decode()
    assert 'value="Order 1 run"' in page
    page = boss.get(url(schedule), {**TIME, "start_1": "00:01", "end_1": "00:59"}).content.decode()
    assert "0 runs to order" in page and "delayq-plan" in page
    assert 'value="Order' not in page


def test_only_the_first_points_are_listed(boss):
    page = boss.get(url(hourly()), {**TIME, "end_1": "23:00"}).content.decode()
    assert "24 runs to order" in page and "and 14 more" in page
    assert page.count("nothing recorded") == 10


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"end_0": "2026-03-09"}, "before the start"),
        ({"end_0": ""}, "This field is required."),
        ({"end_0": "soon"}, "valid date"),
        ({"start_0": "2025-01-01"}, "at most 1000 are ordered at once"),
    ],
)
def test_what_cannot_be_ordered_is_said_and_not_ordered(boss, values, told):
    schedule = hourly()
    for response in (boss.get(url(schedule), {**TIME, **values}), boss.post(url(schedule), {**TIME, **values})):
        assert response.status_code == 200
        assert told in response.content.decode()
        assert 'value="Order' not in response.content.decode()
    assert not Run.objects.exists()


def test_a_schedule_that_is_edited_between_the_page_and_the_order_is_told(boss):
    schedule = hourly()
    assert "4 runs to order" in boss.get(url(schedule), TIME).content.decode()
    Schedule._base_manager.filter(pk=schedule.pk).update(kind="every", cron="", every=timedelta(hours=1))
    Schedule._base_manager.filter(pk=schedule.pk).update(every_from="finish")
    response = boss.post(url(schedule), TIME, follow=True)
    assert "Use Run now" in response.content.decode()
    assert not Run.objects.exists()


def test_an_interval_whose_zone_is_gone_from_the_system_can_still_be_backfilled(boss):
    schedule = make(kind="every", cron="", every=timedelta(hours=1), start_at=DAY)
    Schedule._base_manager.update(timezone="Mars/Olympus")
    assert "4 runs to order" in boss.get(url(schedule), TIME).content.decode()
