"""APScheduler: jobs of the code, of SQLAlchemy's and Django's stores; points as its triggers compute them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import apscheduler
import pytest
from apscheduler.job import Job
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from django_apscheduler.jobstores import DjangoJobStore
from django_apscheduler.models import DjangoJob
from sqlalchemy import create_engine

from django_delayq.models import Schedule
from tests.importing.conftest import START, imported, our_points

RIGA = ZoneInfo("Europe/Riga")
ADD, NOOP = "tests.app.tasks:add.func", "tests.app.tasks:noop.func"
MAPS = ["--map=tests.app.tasks.*.func=tests.app.tasks.add"]
#: Of its user guide, and its tests.
CRONS = {
    "third Friday": {"month": "6-8,11-12", "day": "3rd fri", "hour": "0-3"},
    "weekdays": {"day_of_week": "mon-fri", "hour": 5, "minute": 30},
    "from a crontab": "0 0 1-15 may-aug *",
    "last Sunday": {"day": "last sun"},
    "last day": {"day": "last", "hour": 23},
    "some": {"minute": "*/5", "hour": "0-23/6", "second": "10,40"},
    "every second": {"second": "*"},
    "two positions": {"day": "1st mon,3rd mon", "hour": 8},
    "by number": {"day_of_week": "0,6", "hour": 1},
    "every other weekday": {"day_of_week": "*/2"},
    "both days": {"day": "1-7", "day_of_week": "mon", "hour": 3},
    "every even hour": {"hour": "*/2"},
    "every third day": {"day": "*/3"},
    "month": {"month": "*/4"},
}


@pytest.fixture
def scheduler(monkeypatch):
    made = BackgroundScheduler(timezone=RIGA)
    monkeypatch.setattr(apscheduler, "made", made, raising=False)
    yield made
    if made.running:
        made.shutdown()


def their_points(trigger, start=START, count=10):
    points, last, now = [], None, start + timedelta(microseconds=1)
    for _number in range(count):
        last = trigger.get_next_fire_time(last, now if last is None else last + timedelta(microseconds=1))
        if last is None:
            break
        points.append(last.astimezone(UTC))
    return points


@pytest.mark.parametrize("name", CRONS)
def test_the_points_of_a_cron_trigger_are_its_own(scheduler, name):
    told = CRONS[name]
    trigger = CronTrigger.from_crontab(told, RIGA) if isinstance(told, str) else CronTrigger(timezone=RIGA, **told)
    scheduler.add_job(ADD, trigger, id="s", args=[1])
    assert imported("apscheduler", "apscheduler.made", *MAPS, write=True)[""]
    assert our_points("s") == their_points(trigger)


def test_the_points_of_an_interval_and_a_date_are_its_own(scheduler):
    interval = IntervalTrigger(hours=7, start_date=START, timezone=RIGA, end_date=START + timedelta(days=1))
    scheduler.add_job(ADD, interval, id="i", args=[1])
    at = datetime.now(RIGA).replace(microsecond=0) + timedelta(days=2)
    scheduler.add_job(ADD, "date", run_date=at, id="d", args=[1])
    assert imported("apscheduler", "apscheduler.made", *MAPS, write=True)[""]
    assert our_points("i") == their_points(interval) and len(our_points("i")) == 3
    assert Schedule.objects.get(name="d").at == at


def test_options_are_taken_over_and_the_rest_is_refused(scheduler):
    scheduler.configure(job_defaults={"coalesce": False, "max_instances": 3, "misfire_grace_time": 90}, timezone=RIGA)
    scheduler.add_job(ADD, "cron", hour=1, id="a", args=[1], kwargs={"b": 2}, jitter=30)
    scheduler.add_job(ADD, "cron", hour=1, id="b", args=[1], max_instances=1, coalesce=True, misfire_grace_time=None)
    scheduler.add_job(ADD, "cron", hour=1, id="paused", args=[1], next_run_time=None)
    scheduler.add_job(ADD, "cron", week=3, id="week", args=[1])
    scheduler.add_job(ADD, OrTrigger([CronTrigger(hour=1)]), id="or", args=[1])
    scheduler.add_job(lambda: None, "cron", hour=1, id="lambda")
    scheduler.add_job(ADD, "cron", day="13", day_of_week="fri", id="friday 13", args=[1])
    found = imported("apscheduler", "apscheduler.made", *MAPS, write=True)
    refused = {name for name, entry in found.items() if name and entry["action"] == "refuse"}
    assert refused == {"week", "or", "lambda", "friday 13"}
    a, b = (Schedule.objects.get(name=name) for name in "ab")
    assert (a.missed, a.overlap, a.catch_up_window) == ("all", "allow", timedelta(seconds=90))
    assert (a.jitter, a.kwargs) == (timedelta(seconds=30), {"b": 2})
    assert (b.missed, b.overlap, b.catch_up_window) == ("latest", "skip", None)
    assert not Schedule.objects.get(name="paused").enabled


def test_jobs_without_an_id_are_the_same_in_the_next_process(scheduler, monkeypatch):
    def imported_again(*numbers):
        made = BackgroundScheduler(timezone=RIGA)
        for number in numbers:
            made.add_job(ADD, "interval", hours=number, args=[number])
        monkeypatch.setattr(apscheduler, "made", made)
        found = imported("apscheduler", "apscheduler.made", *MAPS, write=True)
        return {name: entry["action"] for name, entry in found.items() if name}

    assert imported_again(1, 2) == {"add": "create", "add (2)": "create"}
    assert imported_again(2, 1) == {"add": "same", "add (2)": "same"}
    assert imported_again(2) == {"add (2)": "same"}
    assert [row.args for row in Schedule.objects.order_by("name")] == [[1], [2]]


@pytest.mark.parametrize("kind", ["sqlalchemy", "django"])
def test_a_store_is_read_and_nothing_of_it_is_written_or_deleted(scheduler, tmp_path, kind):
    store = SQLAlchemyJobStore(f"sqlite:///{tmp_path}/jobs") if kind == "sqlalchemy" else DjangoJobStore()
    trigger = CronTrigger(hour=5, timezone=RIGA)
    if kind == "sqlalchemy":
        store.jobs_t.create(create_engine(f"sqlite:///{tmp_path}/jobs"))
    common = {"trigger": trigger, "executor": "default", "args": (1,), "kwargs": {}, "name": "add", "coalesce": True,
              "misfire_grace_time": 1, "max_instances": 1, "next_run_time": START}  # fmt: skip
    for job_id, func in (("good", ADD), ("bad", NOOP)):
        job = Job(scheduler, id=job_id, func=func, **common | ({"args": ()} if func == NOOP else {}))
        if job_id == "bad":
            job.func_ref = "tests.app.gone:function"
        store.add_job(job)
    scheduler.add_jobstore(store)
    scheduler.add_job(ADD, "cron", hour=2, id="of the code", args=[1])
    found = imported("apscheduler", "apscheduler.made", *MAPS, write=True)
    assert [found[name]["action"] for name in ("of the code", "good", "bad")] == ["create", "create", "refuse"]
    assert "restore" in found["bad"]["reason"]
    assert our_points("good") == their_points(trigger)
    if kind == "django":
        assert set(DjangoJob.objects.values_list("id", flat=True)) == {"good", "bad"}
    else:
        with store.engine.connect() as connection:
            assert {row.id for row in connection.execute(store.jobs_t.select())} == {"good", "bad"}
