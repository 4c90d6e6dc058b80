"""Schedules of the real packages. Played with `--ds=tests.importing.settings` only, see `.ci/run`."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import CommandError, call_command

from django_delayq.models import Schedule

collect_ignore_glob = ["test_*.py"]
if settings.SETTINGS_MODULE == "tests.importing.settings":
    collect_ignore_glob = ["test_rq_*.py"] if apps.is_installed("django_celery_beat") else ["test_[!r]*.py"]

#: What the tests ask after: a Monday, weeks away from a change of the clocks.
START = datetime(2027, 1, 4, 9, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def rows(db: None) -> None:
    """A database."""


def imported(*command: str, **options: Any) -> dict[str, Any]:
    """Take over with `--json`; return the entries by name, and under "" whether all of them were taken."""
    out = io.StringIO()
    whole = True
    try:
        call_command("delayq_import", *command, json=True, stdout=out, **options)
    except CommandError:
        whole = False
    told = json.loads(out.getvalue().splitlines()[-1])
    return {"": whole, **{entry["name"]: entry for entry in told["entries"]}}


def our_points(name: str, start: datetime = START, count: int = 10) -> list[datetime]:
    """Return the next points of a schedule that was written."""
    schedule = Schedule.objects.get(name=name)
    points, point = [], start
    for _number in range(count):
        point = schedule.recurrence.next_after(point)
        if point is None:
            break
        points.append(point)
    return points


def minutes_where(matches: Any, start: datetime = START, count: int = 10, days: int = 4000) -> list[datetime]:
    """Return the first minutes after `start` of which `matches` says that they are some."""
    found, minute = [], start.replace(second=0, microsecond=0)
    end = start + timedelta(days=days)
    while len(found) < count and minute < end:
        minute += timedelta(minutes=1)
        if matches(minute):
            found.append(minute)
    return found
