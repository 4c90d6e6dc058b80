"""Rows that are read and written as tuples are those that Django reads and writes."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, connections

from django_delayq import ledger
from django_delayq.ledger import Outcome, Won, bulk
from django_delayq.ledger.rows import RunRow
from django_delayq.models import Run, Schedule, ScheduleState
from tests.support import YEARLY_CRON

pytestmark = pytest.mark.django_db
ODD = {"result": {"é": [None, 1.5, "\U0001f600 %s '\""]}, "error": "line\n\ttab\\ 100 %", "reason": "%(x)s {y}"}
ZONES = [None, "Asia/Kolkata"] if connection.vendor == "sqlite" else [None]


@pytest.fixture(params=ZONES)
def zone(request, settings, monkeypatch):
    """Have a database that keeps its instants in another zone, as DATABASES['default']['TIME_ZONE'] may say."""
    if request.param and settings.USE_TZ:
        monkeypatch.setitem(connections["default"].__dict__, "timezone", ZoneInfo(request.param))
    for cached in (bulk.reader, bulk.writer):
        cached.cache_clear()
    yield
    for cached in (bulk.reader, bulk.writer):
        cached.cache_clear()


def parts(one, names):
    return {name: getattr(one, name) for name in names}


def test_what_one_side_writes_the_other_side_reads(zone):
    at = datetime(2030, 3, 31, 1, 30, 0, 123456, tzinfo=UTC)
    values = {"every": timedelta(days=1, microseconds=1000), "start_at": at, "jitter": timedelta(seconds=3)}
    Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="every", **values, created_at=at)
    schedule = Schedule.objects.select_related("state").get()
    row = ledger.load_schedules([schedule.pk])[schedule.pk]
    assert parts(schedule, ledger.reading.DEFINITION) == parts(row, ledger.reading.DEFINITION)
    times = {"claimed_at": at, "started_at": at + timedelta(microseconds=1), "finished_at": at}
    run = RunRow.build_for(schedule, at, status="succeeded", fence="1.e", worker="w", **times, **ODD)
    assert ledger.record([Outcome(run, row)]) == [Won.YES]
    stands = Run.objects.get()
    assert stands.due_at == at
    assert parts(run, ledger.reading.RUN) == parts(stands, ledger.reading.RUN)
    state = ScheduleState.objects.get()
    again = ledger.load_schedules([schedule.pk])[schedule.pk].state
    assert parts(state, ledger.reading.STATE) == parts(again, ledger.reading.STATE)
    assert again.last_due_at == at
    assert ledger.load_runs([stands.pk])[stands.pk].result == ODD["result"]


def test_instances_for_others_hold_what_was_read_and_ask_for_the_rest():
    Schedule.objects.create(name="s", description="long", task="tests.app.tasks.noop", kind="cron", cron=YEARLY_CRON)
    schedule = Schedule.objects.get()
    instance = ledger.build_schedule(ledger.load_schedules([schedule.pk])[schedule.pk])
    assert instance == schedule
    assert instance.get_deferred_fields() == {
        "description", "pause_reason", "updated_at", "keep", "keep_last", "expected_within", "declared_key",
        "declaration_gone_at",
    }  # fmt: skip
    assert (instance.description, instance.state.next_due_at) == ("long", schedule.state.next_due_at)
    run = ledger.build_run(RunRow.build_for(schedule, schedule.created_at, status="running"))
    assert (run.pk, run._state.adding, run.get_status_display()) == (None, True, "running")


@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases have one way to write an instant")
@pytest.mark.parametrize("text", ["2030-01-02T03:04:05", "2030-01-02 03:04", "2030-01-02 03:04:05+02:00", "2030-01-02"])
def test_an_instant_that_somebody_wrote_in_another_way_is_read_as_django_reads_it(text, zone):
    Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron=YEARLY_CRON)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_delayq_schedule SET start_at = %s", [text])
    schedule = Schedule.objects.get()
    assert ledger.load_schedules([schedule.pk])[schedule.pk].start_at == schedule.start_at
