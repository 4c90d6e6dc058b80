"""procrastinate's periodic tasks; points as its own deferrer finds them."""

from datetime import UTC, datetime, timedelta

import procrastinate
import pytest
from procrastinate.periodic import PeriodicDeferrer
from procrastinate.testing import InMemoryConnector

from django_delayq.models import Schedule
from tests.importing.conftest import START, imported, our_points

NOOP = "tests.app.tasks.noop"
ADD = "tests.app.tasks.add"


@pytest.fixture
def app(monkeypatch):
    made = procrastinate.App(connector=InMemoryConnector())
    monkeypatch.setattr(procrastinate, "made", made, raising=False)
    return made


@pytest.mark.parametrize(
    "cron", ["*/10 * * * *", "0 0 * * *", "0 5 * * * 0", "*/1 * * * * */5", "0 0 1 * 1", "0 0 */2 * 3", "0 12 * * 5#3"]
)
def test_the_points_are_those_of_its_own_deferrer(app, cron):
    @app.periodic(cron=cron)
    @app.task(name=NOOP)
    def noop(timestamp):
        pass

    (periodic,) = app.periodic_registry.periodic_tasks.values()
    deferrer = PeriodicDeferrer(app.periodic_registry)
    since, until = START.timestamp(), (START + timedelta(days=400)).timestamp()
    theirs = []
    for stamp in deferrer.get_timestamps(periodic, int(since), until):
        theirs.append(datetime.fromtimestamp(stamp, UTC))
        if len(theirs) == 10:
            break
    assert imported("procrastinate", "procrastinate.made", write=True)[""]
    assert our_points(NOOP) == theirs and len(theirs) == 10


def test_options_come_over_or_are_named(app):
    @app.periodic(cron="0 1 * * *", periodic_id="one", task_kwargs={"a": 1}, queue="mail", priority=3)
    @app.periodic(cron="0 2 * * *", periodic_id="two", task_kwargs={"a": 2}, lock="x")
    @app.periodic(cron="0 3 * * *", periodic_id="three", task_kwargs={"a": 3}, queueing_lock="y")
    @app.periodic(cron="0 4 * * *", periodic_id="four")
    @app.task(name=ADD, retry=3)
    def add(timestamp, a):
        pass

    found = imported("procrastinate", "procrastinate.made", write=True)
    made = {row.name.rpartition(" ")[2]: row for row in Schedule.objects.all()}
    assert made.keys() == {"one", "two", "three"}
    assert "missing a required argument" in found[f"{ADD} four"]["reason"]
    assert (made["one"].kwargs, made["one"].queue, made["one"].overlap) == ({"a": 1}, "mail", "allow")
    assert made["one"].catch_up_window == timedelta(minutes=10)
    assert [made[name].overlap for name in ("two", "three")] == ["queue_all", "queue_one"]
    assert "left out: priority, retry" in found[f"{ADD} one"]["notes"]
