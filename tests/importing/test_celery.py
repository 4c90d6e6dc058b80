"""Celery's beat_schedule and django-celery-beat's tables, filled by their own code; its points as Celery has them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import celery
import pytest
from celery.schedules import crontab, schedule, solar
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
from django_celery_beat.schedulers import ModelEntry

from django_delayq.models import Schedule
from tests.importing.conftest import START, imported, our_points

RIGA = ZoneInfo("Europe/Riga")
ADD = "tests.app.tasks.add"
NOOP = "tests.app.tasks.noop"

#: The table of Celery's user guide, "Crontab schedules", with what its tests have beside.
CRONTABS = {
    "every minute": crontab(),
    "daily at midnight": crontab(minute=0, hour=0),
    "every three hours": crontab(minute=0, hour="*/3"),
    "every three hours, listed": crontab(minute=0, hour="0,3,6,9,12,15,18,21"),
    "every 15 minutes": crontab(minute="*/15"),
    "every minute on Sundays": crontab(day_of_week="sunday"),
    "the same": crontab(minute="*", hour="*", day_of_week="sun"),
    "every ten minutes at hours of two days": crontab(minute="*/10", hour="3,17,22", day_of_week="thu,fri"),
    "every even hour, and every hour divisible by three": crontab(minute=0, hour="*/2,*/3"),
    "hours divisible by 5": crontab(minute=0, hour="*/5"),
    "divisible by 3, and office hours": crontab(minute=0, hour="*/3,8-17"),
    "second day of every month": crontab(0, 0, day_of_month="2"),
    "even days": crontab(0, 0, day_of_month="2-30/2"),
    "first and third weeks": crontab(0, 0, day_of_month="1-7,15-21"),
    "11 May": crontab(0, 0, day_of_month="11", month_of_year="5"),
    "first month of quarters": crontab(0, 0, month_of_year="*/3"),
    "first and third Monday": crontab(0, 0, day_of_week=1, day_of_month="1-7,15-21"),
    "second Tuesday": crontab(30, 7, day_of_week="tue", day_of_month="8-14"),
    "Sundays that are seventh days": crontab(0, 0, day_of_week=0, day_of_month="*/7"),
    "Sunday among them": crontab(5, 4, day_of_week="sun,wed", day_of_month="10-20"),
    "wrapping": crontab(minute=10, hour="22-2", day_of_week="fri-mon"),
    "weekdays and some days": crontab(0, 12, day_of_week="*/2", day_of_month="*/3"),
    "a set": crontab(minute={1, 31}, hour=[7, 8], month_of_year="jan,jul"),
    "leap day": crontab(0, 0, day_of_month=29, month_of_year=2),
    "from a string": crontab.from_string("0 22 * * 1-5"),
}


def celery_points(one, start=START, count=10, zone=RIGA):
    """Ask Celery's own schedule for its next points, as beat does: from one run to the next."""
    points, last = [], start.astimezone(zone)
    for _number in range(count):
        last = last.replace(microsecond=0)
        one.nowfun = lambda last=last: last
        remaining = one.remaining_estimate(last)
        last = (last.astimezone(UTC) + remaining).astimezone(zone)
        points.append(last.astimezone(UTC))
    return points


@pytest.fixture
def app():
    made = celery.Celery("shop", set_as_current=False)
    made.conf.timezone = "Europe/Riga"
    for one in CRONTABS.values():
        one.app = made
    return made


@pytest.fixture
def named(app, monkeypatch):
    """Let the app be found by its dotted path."""
    monkeypatch.setattr(celery, "shop_app", app, raising=False)
    return "celery.shop_app"


@pytest.mark.parametrize("name", CRONTABS)
def test_the_points_of_a_crontab_are_those_of_celery(app, named, name):
    app.conf.beat_schedule = {name: {"task": NOOP, "schedule": CRONTABS[name]}}
    assert imported("celery", named, write=True)[""]
    assert our_points(name) == celery_points(CRONTABS[name])


def test_what_no_expression_says_is_refused_with_its_reason(app, named):
    app.conf.beat_schedule = {
        "Friday 13": {"task": NOOP, "schedule": crontab(0, 0, day_of_week="fri", day_of_month="13")},
        "sunset": {"task": NOOP, "schedule": solar("sunset", -37.81753, 144.96715)} if _has_ephem() else {},
        "none": {"task": NOOP, "schedule": 0},
        "other": {"task": NOOP, "schedule": object()},
    }
    found = imported("celery", named, write=True)
    assert not found.pop("") and {entry["action"] for entry in found.values()} == {"refuse"}
    assert "it would match either" in found["Friday 13"]["reason"]
    assert not Schedule.objects.exists()


def _has_ephem():
    try:
        import ephem  # noqa: F401
    except ImportError:
        return False
    return True


def test_the_examples_of_the_user_guide_come_over(app, named):
    @app.on_after_configure.connect
    def setup_periodic_tasks(sender, **kwargs):
        sender.add_periodic_task(10.0, app.signature(ADD, args=(1,)), name="add every 10")
        sender.add_periodic_task(30.0, app.signature(ADD, args=(2,)), expires=10)
        sender.add_periodic_task(crontab(hour=7, minute=30, day_of_week=1), app.signature(ADD, args=(3,)))

    app.conf.beat_schedule = {
        "add-every-30-seconds": {"task": ADD, "schedule": 30.0, "args": (16, 16), "options": {"queue": "mail"}},
        "every-half-a-day": {"task": ADD, "schedule": timedelta(hours=12), "kwargs": {"a": 1}, "relative": True},
        "hourly": {"task": NOOP, "schedule": schedule(timedelta(hours=1), relative=True)},
    }
    found = imported("celery", named, write=True)
    assert found.pop("") and len(found) == 6
    (expiring,) = Schedule.objects.filter(missed="skip")
    assert (expiring.every, expiring.grace) == (timedelta(seconds=30), timedelta(seconds=10))
    first = Schedule.objects.get(name="add-every-30-seconds")
    assert (first.args, first.queue, first.overlap) == ([16, 16], "mail", "allow")
    assert any("rounds" in note for note in found["every-half-a-day"]["notes"])
    assert Schedule.objects.get(name="hourly").every == timedelta(hours=1)
    assert Schedule.objects.get(kind="cron", args=[3]).timezone == "Europe/Riga"


# -- django-celery-beat


def periodic(name, **values):
    values = {"task": NOOP, "enabled": True, **values}
    return PeriodicTask.objects.create(name=name, **values)


def crontab_row(one, zone=RIGA):
    made = CrontabSchedule.from_schedule(one)
    made.timezone = zone
    made.save()
    return made


@pytest.mark.parametrize("name", sorted(CRONTABS.keys() - {"a set"}))  # its models keep texts
def test_the_points_of_a_row_are_those_of_its_own_schedule(app, name):
    row = periodic(name, crontab=crontab_row(CRONTABS[name]))
    assert imported("django-celery-beat", write=True)[""]
    own = row.schedule
    own.app = app
    own.tz = RIGA
    assert our_points(name) == celery_points(own)


@pytest.mark.parametrize("period", ["days", "hours", "minutes", "seconds"])
def test_an_interval_goes_on_where_beat_was(app, period):
    interval = IntervalSchedule.objects.create(every=7, period=period)
    last = datetime.now(UTC).replace(microsecond=0) - timedelta(**{period: 3})
    row = periodic("s", interval=interval)
    PeriodicTask.objects.filter(pk=row.pk).update(last_run_at=last)
    entry = ModelEntry(PeriodicTask.objects.get(pk=row.pk), app=app)
    assert imported("django-celery-beat", write=True)[""]
    step = entry.schedule.run_every
    assert our_points("s", last) == [last + step * number for number in range(1, 11)]
    entry.schedule.nowfun = lambda: last
    assert last + entry.schedule.remaining_estimate(last) == last + step
    # Beat goes on meanwhile: nothing is moved by that.
    PeriodicTask.objects.filter(pk=row.pk).update(last_run_at=last + step * 2.01)
    assert imported("django-celery-beat", write=True)["s"]["action"] == "same"


def test_every_column_is_taken_over_or_named(app):
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
    every = IntervalSchedule.objects.create(every=2, period="hours")
    call = {"task": ADD, "args": "[1]", "kwargs": '{"b": 2}', "queue": "mail", "description": "why", "enabled": False}
    sent = {"priority": 9, "expire_seconds": 60, "headers": '{"x": 1}', "routing_key": "r"}
    periodic("full", interval=every, one_off=True, start_time=later, **call, **sent)
    periodic("until", interval=every, expires=later, queue="elsewhere")
    clocked = ClockedSchedule.objects.create(clocked_time=later)
    periodic("once", clocked=clocked, one_off=True)
    past = ClockedSchedule.objects.create(clocked_time=later - timedelta(days=31))
    periodic("gone", clocked=past, one_off=True)
    periodic("sun", solar=SolarSchedule.objects.create(event="sunset", latitude=1, longitude=1))
    periodic("unknown", task="shop.tasks.none", interval=every)
    periodic("broken", interval=every, args="[")
    periodic("odd", crontab=CrontabSchedule.objects.create(minute="abc"))
    periodic("endless", interval=IntervalSchedule.objects.create(every=2**31 - 1, period="days"))
    found = imported("django-celery-beat", write=True)
    refused = {name for name, entry in found.items() if name and entry["action"] == "refuse"}
    assert refused == {"gone", "sun", "unknown", "broken", "odd", "endless"} and not found[""]
    assert "@task" in found["unknown"]["reason"] and "--map" in found["unknown"]["reason"]
    full = Schedule.objects.get(name="full")
    assert (full.args, full.kwargs, full.queue, full.max_runs, full.enabled) == ([1], {"b": 2}, "mail", 1, False)
    assert (full.grace, full.missed, full.start_at) == (timedelta(minutes=1), "skip", later)
    assert full.description.startswith("why\n\nImported from django-celery-beat (")
    assert any("headers, priority, routing_key" in note for note in found["full"]["notes"])
    until = Schedule.objects.get(name="until")
    assert (until.end_at, until.queue) == (later, "default")
    assert any("'elsewhere'" in note for note in found["until"]["notes"])
    assert Schedule.objects.get(name="once").at == later


def test_what_beat_itself_writes_comes_over_but_for_its_own_cleanup(app):
    ModelEntry.from_entry("mine", app=app, task=ADD, schedule=crontab(hour=4, minute=0), args=(1,))
    cleanup = {
        "task": "celery.backend_cleanup",
        "schedule": crontab("0", "4", "*"),
        "options": {"expire_seconds": 43200},
    }
    ModelEntry.from_entry("celery.backend_cleanup", app=app, **cleanup)
    found = imported("django-celery-beat", write=True)
    assert found[""] and found["celery.backend_cleanup"]["action"] == "skip"
    assert found["mine"]["action"] == "create"
    assert (Schedule.objects.get().cron, Schedule.objects.get().args) == ("0 4 * * *", [1])
