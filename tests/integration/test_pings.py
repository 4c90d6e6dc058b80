"""Pings: what a service such as healthchecks.io hears of the runs of a schedule, and that no run waits for it."""

import time
import uuid
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.exceptions import ValidationError

from django_delayq import actions
from django_delayq.models import Run, Schedule
from django_delayq.monitoring import pings
from tests.integration.admin_pages import ADD, client_for, fields
from tests.integration.mirroring import schedule
from tests.receiving import Receiver
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def receiver(settings):
    with Receiver() as one:
        settings.DELAYQ = {**settings.DELAYQ, "ALERTS": {"HOSTS": [one.host]}}
        yield one


@pytest.fixture
def brisk(monkeypatch):
    monkeypatch.setattr(pings, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(pings, "_pinger", None)


def pinged(broker, receiver, name="s", **values):
    row = schedule(name, ping_url=f"{receiver.url}/{name}", **values)
    make_due(broker, row)
    return row


def test_a_run_is_told_at_its_start_and_its_success_under_one_rid(broker, receiver, brisk):
    row = pinged(broker, receiver)
    run_burst()
    assert receiver.paths == ["/s/start", "/s"]
    first, second = (parse_qs(urlsplit(request.path).query)["rid"][0] for request in receiver.requests)
    assert first == second and uuid.UUID(first)
    actions.run_now(row)
    run_burst()
    assert receiver.paths == ["/s/start", "/s", "/s/start", "/s"]
    assert first not in receiver.requests[-1].path, "another run"


def test_a_failure_has_its_traceback_without_secrets_and_a_retry_is_none_yet(broker, receiver, brisk):
    values = {"kwargs": {"password": "hunter2", "note": "plain"}, "max_attempts": 2, "backoff": timedelta(0)}
    row = pinged(broker, receiver, task="tests.jobs.tasks.leak", **values)
    run_burst()
    assert Run.objects.get(schedule=row).status == "failed"
    assert receiver.paths == ["/s/start", "/s/start", "/s/fail"]
    body = receiver.requests[-1].body.decode()
    assert "in leak" in body and "hunter2" not in body


def test_a_service_that_hangs_or_refuses_delays_no_run(broker, receiver, brisk, monkeypatch):
    monkeypatch.setattr(pings.flush, "__defaults__", (0.1,))
    receiver.delay_seconds = 3.0
    pinged(broker, receiver)
    run_burst()
    run = Run.objects.get()
    assert run.status == "succeeded" and run.duration < timedelta(seconds=2.5)


def test_it_is_tried_three_times_then_its_host_is_left_out_for_a_while(broker, receiver, brisk):
    receiver.status = 500
    url = f"{receiver.url}/s"
    pings.ping(url, "", "1:due:1")
    pings.ping(url, "", "1:due:2")
    while pings._pinger.waiting.unfinished_tasks:
        time.sleep(0.01)
    assert len(receiver.requests) == 3
    pings._pinger.resting.clear()
    receiver.status = 200
    pings.ping(url, "", "1:due:3")
    pings.flush()
    assert len(receiver.requests) == 4


def test_what_does_not_fit_is_dropped_and_nobody_waits(receiver, brisk, monkeypatch, caplog):
    monkeypatch.setattr(pings, "MOST", 2)
    receiver.delay_seconds = 0.2
    for number in range(6):
        pings.ping(f"{receiver.url}/s", "", str(number))
    pings.flush()
    assert 2 <= len(receiver.requests) <= 3
    assert "A ping was dropped" in caplog.text


def test_a_host_that_is_not_listed_any_more_gets_nothing(broker, receiver, brisk, settings, caplog):
    pinged(broker, receiver)
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": {"HOSTS": ["hc-ping.com"]}}
    run_burst()
    assert Run.objects.get().status == "succeeded" and not receiver.requests
    assert "A ping is not sent: DELAYQ['ALERTS']['HOSTS'] does not list" in caplog.text
    row = Schedule.objects.get()
    row.timeout = timedelta(minutes=1)
    row.save()  # what is there can still be edited otherwise


@pytest.mark.parametrize("way", ["save", "bulk_create", "full_clean", "form"])
def test_an_address_that_would_get_nothing_is_refused_wherever_it_is_written(receiver, way):
    for url in ("https://evil.example/x", f"{receiver.url}/x?y=1", "nonsense"):
        row = Schedule(name="s", task="tests.app.tasks.noop", kind="cron", cron="@daily", ping_url=url)
        if way == "form":
            page = client_for(superuser=True).post(ADD, fields(ping_url=url))
            assert list(page.context["adminform"].form.errors) == ["ping_url"]
            continue
        with pytest.raises(ValidationError) as caught:
            Schedule.objects.bulk_create([row]) if way == "bulk_create" else getattr(row, way)()
        assert list(caught.value.message_dict) == ["ping_url"]
    assert not Schedule.objects.exists()


def test_a_backfill_pings_nothing(broker, receiver, brisk):
    row = schedule("s", kind="every", every=timedelta(hours=1), cron="", ping_url=f"{receiver.url}/s")
    make_due(broker, row, timedelta(hours=3))
    Schedule._base_manager.update(enabled=False)
    row.refresh_from_db()
    now = row.effective_from
    actions.backfill(row, now, now + timedelta(hours=2))
    run_burst()
    assert Run.objects.filter(origin="backfill", status="succeeded").exists() and not receiver.requests
