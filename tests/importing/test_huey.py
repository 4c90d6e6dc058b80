"""Huey's periodic tasks; points are the minutes of which its own function says so."""

from datetime import UTC, datetime, timedelta

import huey
import pytest
from huey import MemoryHuey, crontab

from django_delayq.models import Schedule
from tests.app import tasks
from tests.importing.conftest import START, imported, minutes_where, our_points

#: Of its documentation and tests.
CRONTABS = [
    crontab(minute="*/3"),
    crontab(minute="0", hour="3"),
    crontab(minute="0", hour="*/4"),
    crontab(minute="*/10", hour="8-18", day_of_week="1-5"),
    crontab(day="1,15", hour="0", minute="0", month="*/2"),
    crontab(minute="0", hour="22-2"),
    crontab(minute="30", hour="4", day_of_week="6-1"),
    crontab(minute="5", hour="1", day_of_week="0,3"),
    crontab(minute="5", hour="1", day_of_week="7"),
    crontab(minute="0", hour="0", day="1-7", day_of_week="1"),
    crontab(minute="0", hour="0", day="8-14", day_of_week="2,4"),
    crontab.hourly(),
    crontab.daily(),
]


@pytest.fixture
def named(monkeypatch):
    made = MemoryHuey(utc=True)
    monkeypatch.setattr(huey, "made", made, raising=False)
    return made


@pytest.mark.parametrize("number", range(len(CRONTABS)))
def test_the_points_are_those_of_its_own_function(named, number):
    named.periodic_task(CRONTABS[number])(tasks.noop.func)
    assert imported("huey", "huey.made", write=True)[""]
    (task,) = named._registry.periodic_tasks
    days = 400
    theirs = minutes_where(lambda minute: task.validate_datetime(minute.replace(tzinfo=None)), days=days)
    ours = our_points("tests.app.tasks.noop")
    assert len(theirs) >= 5 and ours[: len(theirs)] == theirs


def test_options_and_what_is_refused(named):
    named.periodic_task(crontab(minute="0"), retries=2, retry_delay=10, expires=60, priority=5, timeout=30)(
        tasks.noop.func
    )
    named.periodic_task(crontab(minute="0", day="13", day_of_week="5"), name="friday")(tasks.noop.func)
    named.periodic_task(lambda moment: moment.minute == 3, name="own")(tasks.noop.func)
    named.periodic_task(crontab(minute="0"), name="missing")(tasks.noop.func)
    named.periodic_task(crontab(minute="0"), expires=datetime.now(UTC), name="dated")(tasks.noop.func)
    found = imported("huey", "huey.made", write=True)
    refused = {
        name.rpartition(".")[2]: entry["reason"]
        for name, entry in found.items()
        if name and entry["action"] == "refuse"
    }
    assert refused.keys() == {"friday", "own", "missing", "dated"}
    assert "crontab()" in refused["own"] and "@task" in refused["missing"]
    made = Schedule.objects.get()
    assert (made.max_attempts, made.backoff, made.timeout) == (3, timedelta(seconds=10), timedelta(seconds=30))
    assert (made.grace, made.missed, made.timezone) == (timedelta(seconds=60), "skip", "UTC")


def test_a_huey_in_local_time_is_read_in_the_project_s_zone(monkeypatch):
    made = MemoryHuey(utc=False)
    monkeypatch.setattr(huey, "made", made, raising=False)
    made.periodic_task(crontab(minute="0", hour="3"))(tasks.noop.func)
    found = imported("huey", "huey.made", write=True)
    assert Schedule.objects.get().timezone == "Europe/Riga"
    assert any("--timezone" in note for note in found["tests.app.tasks.noop"]["notes"])
    assert our_points("tests.app.tasks.noop", START, 1) == [datetime(2027, 1, 5, 1, tzinfo=UTC)]
