"""rq-scheduler's jobs in Redis, put there by its own code; points as the package `crontab` has them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import crontab
import pytest
import redis
import rq_scheduler

from django_delayq.embedded import EmbeddedServer
from django_delayq.models import Schedule
from tests.app import tasks
from tests.importing.conftest import START, imported, our_points

RIGA = ZoneInfo("Europe/Riga")
ADD = "tests.app.tasks.add"
pytestmark = pytest.mark.filterwarnings("ignore")  # its own, about datetimes


@pytest.fixture(scope="module")
def server():
    """A server of RQ's own: its keys have no prefix of ours."""
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def scheduler(server, monkeypatch):
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        made = rq_scheduler.Scheduler(queue_name="mail", connection=client)
        monkeypatch.setattr(rq_scheduler, "made", lambda: made, raising=False)
        yield made


@pytest.mark.parametrize(
    "cron", ["0 0 * * 0", "*/15 * * * *", "0 0 1-7 * 1", "0 0 */2 * 1", "0 12 L * *", "0 12 * * L5",
             "30 6 * jan-jun mon-fri", "0 5 * * sat-sun", "@daily", "15 10 ? * 3", "0 9 8-14 * 2"],
)  # fmt: skip
def test_the_points_are_those_of_the_package_that_it_asks(scheduler, cron):
    scheduler.cron(cron, func=ADD, args=[1], id="s")
    assert imported("rq-scheduler", "rq_scheduler.made", write=True)[""]
    points, now = [], START.astimezone(RIGA)
    for _number in range(10):
        now = crontab.CronTab(cron).next(now=now.replace(tzinfo=None), return_datetime=True, default_utc=True)
        points.append(now.replace(tzinfo=RIGA).astimezone(UTC))
    assert our_points("s") == points


def test_intervals_and_times_come_over(scheduler):
    soon = datetime.now(UTC).replace(microsecond=0, tzinfo=None) + timedelta(minutes=3)
    scheduler.schedule(soon, tasks.add.func, args=[1], kwargs={"b": 2}, interval=60, repeat=10, id="every")
    scheduler.enqueue_at(soon, ADD, 5, job_id="once", timeout=30)
    scheduler.enqueue_in(timedelta(minutes=10), "math.copysign", 5, -1)
    found = imported("rq-scheduler", "rq_scheduler.made", write=True)
    assert found["once"]["action"] == "create"
    once = Schedule.objects.get(name="once")
    assert (once.at, once.timeout, once.queue) == (soon.replace(tzinfo=UTC), timedelta(seconds=30), "mail")
    (unnamed,) = (entry for name, entry in found.items() if name.startswith("math.copysign "))
    assert unnamed["action"] == "refuse" and "@task" in unnamed["reason"]
    every = Schedule.objects.get(name="every")
    assert (every.every, every.max_runs, every.kwargs) == (timedelta(seconds=60), 10, {"b": 2})
    first = soon.replace(tzinfo=UTC)
    ours = our_points("every", first - timedelta(seconds=1))
    assert ours == [first + number * timedelta(seconds=60) for number in range(10)]


def test_a_job_that_rq_cannot_read_is_refused_alone(scheduler):
    scheduler.cron("0 0 * * *", func=ADD, args=[1], id="good")
    scheduler.cron("0 0 * * *", func=ADD, args=[1], id="bad")
    scheduler.connection.hset("rq:job:bad", "data", b"nothing")
    found = imported("rq-scheduler", "rq_scheduler.made", write=True)
    assert (found["good"]["action"], found["bad"]["action"]) == ("create", "refuse")
