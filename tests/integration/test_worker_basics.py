"""The main job in one process: a schedule is saved, mirrored, claimed, run, recorded and settled."""

import signal
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import autoreload

from django_delayq.models import Run, Schedule, Status
from tests.support import DAILY_CRON, DAY, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_due_point_runs_once_and_the_next_one_waits(broker):
    schedule = Schedule.objects.create(name="s", task="tests.app.tasks.add", args=[2], kind="cron", cron=DAILY_CRON)
    point = make_due(broker, schedule)
    began = datetime.now(UTC)
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.result, run.due_at) == (Status.SUCCEEDED, 3, point)
    schedule.refresh_from_db()
    assert schedule.state.last_due_at == point
    assert schedule.state.run_count == 1
    view = broker.views([(f"s{schedule.pk}", "default")])[0]
    assert view.point_ms == int((point + DAY).timestamp() * 1000)
    assert not view.leased
    assert began - timedelta(milliseconds=1) <= run.claimed_at <= datetime.now(UTC)


def test_the_command_called_from_code_runs_what_is_due_and_leaves_the_signals_as_they_were(broker):
    schedule = Schedule.objects.create(name="s", task="tests.app.tasks.add", args=[2], kind="cron", cron=DAILY_CRON)
    point = make_due(broker, schedule)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert call_command("delayq_worker", burst=True) is None
        assert {number: signal.getsignal(number) for number in before} == before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert Run.objects.get().due_at == point
    with pytest.raises(CommandError, match=r"not call_command\(\)"):
        call_command("delayq_worker", processes=2)


def test_a_worker_that_reloads_its_code_works_like_any_other(broker, monkeypatch):
    schedule = Schedule.objects.create(name="s", task="tests.app.tasks.add", args=[2], kind="cron", cron=DAILY_CRON)
    make_due(broker, schedule)
    monkeypatch.setattr(autoreload, "run_with_reloader", lambda run, options: run(options))
    call_command("delayq_worker", reload=True, max_runs=1)
    assert Run.objects.get().status == Status.SUCCEEDED
