"""What the others do when the clocks change, as the table and docs/coming-over say: Riga, 03:30 every day."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import celery
import pytest
from apscheduler.triggers.cron import CronTrigger
from celery.schedules import crontab
from croniter import croniter
from django_q.models import Schedule as Theirs
from huey import crontab as minute_check

from django_delayq.recurrence import Cron
from tests.importing.conftest import minutes_where
from tests.importing.test_celery import celery_points

RIGA = ZoneInfo("Europe/Riga")
GAP, TWICE = datetime(2027, 3, 27, 12, tzinfo=UTC), datetime(2027, 10, 30, 12, tzinfo=UTC)


def of_celery(start):
    app = celery.Celery(set_as_current=False)
    app.conf.timezone = "Europe/Riga"
    return celery_points(crontab(minute=30, hour=3, app=app), start, 3)


def of_apscheduler(start):
    trigger, now = CronTrigger(hour=3, minute=30, timezone=RIGA), start
    for _number in range(3):
        now = trigger.get_next_fire_time(None, now + timedelta(seconds=1)).astimezone(UTC)
        yield now  # its wall clock may show a time that does not exist


def of_django_q2_cron(start):
    found = croniter("30 3 * * *", start.astimezone(RIGA))
    return [found.get_next(datetime) for _number in range(3)]


def of_django_q2_daily(start):
    point = datetime(start.year, start.month, start.day, 3, 30, tzinfo=RIGA).astimezone(UTC)
    for _number in range(3):
        point = Theirs(schedule_type="D").calculate_next_run(point)
        yield point


def of_huey(start):
    check = minute_check(minute="30", hour="3")
    return minutes_where(lambda minute: check(minute.astimezone(RIGA).replace(tzinfo=None)), start, 3)


def of_ours(start):
    cron = Cron("30 3 * * *", "Europe/Riga")
    for _number in range(3):
        start = cron.next_after(start)
        yield start


ONCE = ["31 03:30+0300", "01 03:30+0200", "02 03:30+0200"]
BOTH = ["31 03:30+0300", "31 03:30+0200", "01 03:30+0200"]


@pytest.mark.parametrize(
    ("points", "gap", "twice"),
    [
        (of_ours, ["28 04:00", "29 03:30", "30 03:30"], ONCE),
        (of_celery, ["28 04:30", "29 03:30", "30 03:30"], ONCE),
        (of_apscheduler, ["28 04:30", "29 03:30", "30 03:30"], BOTH),
        (of_django_q2_cron, ["28 04:00", "29 03:30", "30 03:30"], BOTH),
        (of_django_q2_daily, ["28 02:30", "29 02:30", "30 02:30"], ONCE),
        (of_huey, ["29 03:30", "30 03:30", "31 03:30"], BOTH),
    ],
)
def test_what_each_does_with_a_time_that_is_missing_or_comes_twice(points, gap, twice):
    assert [f"{point.astimezone(RIGA):%d %H:%M}" for point in points(GAP)] == gap
    assert [f"{point.astimezone(RIGA):%d %H:%M%z}" for point in points(TWICE)] == twice
