"""Alerts: what is told, how often, when not, and what happens where it cannot be."""

import gc
import io
import json
import re
import socket
import threading
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import django
import pytest
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction

from django_delayq import actions, checks, conf
from django_delayq.conf.alerts import find_refusal, parse
from django_delayq.models import Alert, Origin, Run, Schedule, ScheduleState
from django_delayq.monitoring import alerts
from django_delayq.monitoring.alerts import sending, states
from django_delayq.monitoring.database_side import find_late
from django_delayq.monitoring.outgoing import DeliveryFailed, post
from django_delayq.monitoring.snapshot import Problem, Snapshot
from django_delayq.recurrence.point import utcnow
from django_delayq.signals import alert_changed
from tests import failpoints
from tests.acceptance.support import ROOT
from tests.faults.harness.background import Background
from tests.integration.admin_pages import client_for, make_job
from tests.integration.mirroring import at_once, schedule
from tests.integration.probing import beat, well
from tests.jobs.support import LOGGER
from tests.receiving import Receiver
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["well"]

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
HOUR = timedelta(hours=1)
NOT_OURS = {"default": {"BACKEND": f"{LOGGER}.backends.dummy.DummyBackend"}}
DOCS = (Path(ROOT) / "docs/observability.md").read_text("utf-8")


@pytest.fixture
def receiver():
    with Receiver() as one:
        yield one


@pytest.fixture
def told(settings, receiver, well):
    """Mail and a webhook; a prefix that is well otherwise."""
    settings.ADMINS = ["ops@example.com"] if django.VERSION >= (6, 0) else [("Ops", "ops@example.com")]
    if django.VERSION >= (6, 1):
        settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
    values = {"MAIL": True, "WEBHOOK": f"{receiver.url}/hook", "HOSTS": [receiver.host], "SECRET": SECRET}
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": values}
    return settings


def change(settings, **values):
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": {**settings.DELAYQ["ALERTS"], **values}}


def look(times=1):
    """Look, each time as if the rows were an hour old."""
    for _ in range(times):
        for row in Alert.objects.open():
            gone = row.gone_at and row.gone_at - HOUR
            Alert.objects.filter(pk=row.pk).update(since=row.since - HOUR, gone_at=gone)
        snapshot = alerts.look_now()
    return snapshot


def fail(row, times=3):
    ScheduleState.objects.update_or_create(schedule=row, defaults={"failing_streak": times, "last_status": "failed"})


def failing(name="nightly", **values):
    row = schedule(name, **values)
    fail(row)
    return row


def sent():
    """Return the jobs that deliver messages."""
    return Run.objects.filter(origin=Origin.JOB, task="django_delayq.tasks.deliver_alert")


def jobs():
    """Return what is to be sent, as (kind, what, channel)."""
    calls = [call["args"] for call in sent().order_by("pk").values_list("call", flat=True)]
    return [(Alert.objects.get(pk=key).kind, what, channel) for key, what, channel in calls]


def kinds(**lookup):
    return sorted(Alert.objects.filter(reported_at__isnull=False, **lookup).values_list("kind", "subject"))


def lose_workers(broker):
    for name in broker.client.scan_iter(match="*workers"):
        broker.client.delete(name)


BOTH = ("mail", "webhook")


def test_a_state_is_told_once_and_its_end_once_by_mail_and_a_signed_webhook(told, receiver):
    row = failing()
    changes = []
    alert_changed.connect(lambda alert, what, **more: changes.append((str(alert), what)), weak=False, dispatch_uid="t")
    look(4)
    assert jobs() == [("failing", "opened", channel) for channel in BOTH]
    fail(row, 0)
    look(4)
    alert_changed.disconnect(dispatch_uid="t")
    assert changes == [("failing nightly", "opened"), ("failing nightly", "recovered")]
    assert jobs() == [("failing", what, channel) for what in ("opened", "recovered") for channel in BOTH]
    run_burst()
    assert sent().filter(status="succeeded").count() == 4
    (alert,) = Alert.objects.all()
    assert sorted(alert.sent) == sorted(f"{what} {channel}" for what in ("opened", "recovered") for channel in BOTH)
    bodies = {json.loads(request.body)["type"]: json.loads(request.body) for request in receiver.requests}
    opened = bodies["alert.opened"]["data"]
    assert (opened["alert"], opened["kind"], opened["name"], opened["queue"]) == (
        str(alert.pk), "failing", "nightly", "default",
    )  # fmt: skip
    assert opened["text"] == "nightly (tests.app.tasks.noop) has failed 3 times in a row." and opened["until"] is None
    assert bodies["alert.recovered"]["data"]["until"] is not None
    subjects = {message.subject for message in mail.outbox}
    assert subjects == {"[Django] Alert: failing nightly", "[Django] Recovered: failing nightly"}
    assert all(message.to == ["ops@example.com"] for message in mail.outbox)
    ids = {message.extra_headers["Message-ID"] for message in mail.outbox}
    assert ids == {f"<{alert.pk}.opened@localhost>", f"<{alert.pk}.recovered@localhost>"}


def test_the_documented_receiver_takes_what_is_sent_and_nothing_else(told, receiver):
    failing()
    look(2)
    run_burst()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", DOCS, re.S) if "def is_ours" in block]
    values = {}
    exec(code, values)  # noqa: S102 - our own documentation
    is_ours, (request,) = values["is_ours"], receiver.requests
    assert is_ours(request.headers, request.body, SECRET)
    assert not is_ours(request.headers, request.body + b" ", SECRET)
    assert not is_ours(request.headers, request.body, SECRET.replace("MDEy", "MDEz"))
    assert not is_ours({**request.headers, "webhook-id": "another"}, request.body, SECRET)
    sent = int(request.headers["webhook-timestamp"])
    assert not is_ours(request.headers, request.body, SECRET, now=sent + 301)
    assert SECRET not in str(request)
    assert SECRET not in repr(conf.get_config()) and "/hook" not in repr(conf.get_config())


def test_what_comes_and_goes_between_two_looks_is_no_message_either_way(told):
    row = failing()
    for _ in range(3):
        alerts.look_now()
    assert kinds() == [], "looks right after each other are one"
    fail(row, 0)
    look()
    assert not Alert.objects.exists()
    fail(row)
    look(2)
    fail(row, 0)
    look()
    fail(row)
    look(3)
    assert jobs() == [("failing", "opened", channel) for channel in BOTH]
    assert Alert.objects.get().gone_at is None


def test_a_state_that_begins_anew_is_another_row_and_is_told_again(told):
    row = failing()
    look(2)
    fail(row, 0)
    look(3)
    fail(row)
    look(2)
    assert [what for _, what, channel in jobs() if channel == "mail"] == ["opened", "recovered", "opened"]
    assert Alert.objects.count() == 2


def test_what_looks_at_the_same_time_tells_once(told):
    failing()
    look()
    Alert.objects.update(since=utcnow() - HOUR)
    at_once(*[alerts.look_now] * 4)
    assert jobs() == [("failing", "opened", channel) for channel in BOTH]


def test_a_change_and_its_jobs_are_written_together_or_not_at_all(told, monkeypatch):
    failing()
    look()

    def die(name):
        if name == "before_alert":
            raise RuntimeError(name)

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "reach", die)
        with pytest.raises(RuntimeError):
            look()
    assert not sent().exists() and kinds() == []
    look()
    assert len(jobs()) == 2


def test_a_burst_worker_looks_too(told):
    failing()
    run_burst()
    Alert.objects.update(since=Alert.objects.get().since - HOUR)
    run_burst()
    assert len(kinds()) == 1


def test_without_the_setting_there_is_nobody_to_be_told(well, settings):
    failing()
    run_burst()
    assert not Alert.objects.exists()
    with pytest.raises(CommandError, match="is not set, so no alert can be sent"):
        call_command("delayq_status", "--alert")


def test_only_the_signal_needs_no_alias_of_ours(told):
    told.TASKS = NOT_OURS
    told.DELAYQ = {**told.DELAYQ, "ALERTS": {}}
    failing()
    look(2)
    assert len(kinds()) == 1 and not sent().exists()


def test_schedules_that_fail_are_broken_or_have_an_unknown_task_are_told_of_by_one_row_each(told):
    once = failing("less")
    fail(once, 2)
    off = failing("off")
    Schedule.objects.filter(pk=off.pk).update(enabled=False)
    bad, broken, unknown = failing("bad"), schedule("broken"), schedule("unknown")
    ScheduleState.objects.update_or_create(
        schedule=broken, defaults={"condition": "broken", "condition_reason": "no such zone"}
    )
    Schedule._base_manager.filter(pk=unknown.pk).update(task="gone.tasks.send")
    look(2)
    own = [row for row in kinds() if row[1].isdigit()]
    assert own == [("broken", str(broken.pk)), ("failing", str(bad.pk)), ("unknown_task", str(unknown.pk))]
    texts = dict(Alert.objects.values_list("kind", "text"))
    assert "no such zone" in texts["broken"] and "gone.tasks.send" in texts["unknown_task"]
    assert "unknown_tasks" not in texts, "its sum is not told beside it"
    change(told, FAILURES=2)
    look(2)
    assert ("failing", str(once.pk)) in kinds()
    broken.delete()
    look(3)
    assert Alert.objects.get(kind="broken").recovered_at is not None


def test_problems_of_a_queue_and_failed_jobs_are_told_by_queue(told, broker):
    broker.remove_heartbeat()
    lose_workers(broker)
    schedule("s")
    job = make_job(queue="mail")
    look(2)
    assert set(kinds()) == {("no_worker", "default"), ("failed_jobs", "mail")}
    assert Alert.objects.get(kind="failed_jobs").text.startswith("Queue mail has 1 failed job.")
    broker.purge()
    job.delete()
    look(3)
    over = dict(Alert.objects.values_list("kind", "recovered_at"))
    assert over["failed_jobs"] and not over["no_worker"], "the database tells the one, and an empty Redis not the other"


def test_problems_of_one_kind_share_an_alert_that_has_each_text_once(told, monkeypatch):
    found = [Problem("redis_unfit", text) for text in ("No memory.", "No disk.", "No memory.")]
    monkeypatch.setattr(states, "find_conditions", lambda *_: found)
    look(2)
    assert Alert.objects.get().text == "No memory.\nNo disk."


@pytest.mark.parametrize("kind", ["not_built", "redis_unfit"])
def test_a_problem_of_a_silent_redis_does_not_recover(kind):
    unfit = Problem("redis_unfit", "", "")
    silent, seen = Snapshot(), Snapshot(blind={"redis_unfit": unfit})
    assert not states._is_known(silent, kind, "")
    assert states._is_known(seen, kind, "") is (kind == "redis_unfit")


def test_while_redis_is_not_built_nothing_is_known_of_it(told, broker):
    lose_workers(broker)
    schedule("s")
    row = failing()
    look(2)
    assert ("no_worker", "default") in kinds()
    broker.client.flushall()
    beat(broker)
    fail(row, 0)
    look(4)
    stands = dict(Alert.objects.filter(recovered_at=None).values_list("kind", "gone_at"))
    assert stands["no_worker"] is None, "what a flushed Redis does not tell has not recovered"
    assert "not_built" in stands
    assert Alert.objects.get(kind="failing").recovered_at is not None, "the database tells that"


def test_redis_that_does_not_answer_is_told_and_changes_nothing_else(told, broker, dead_redis):
    look(2)
    assert kinds() == [("redis_unreachable", "")]


def test_many_schedules_are_some_rows_and_one_that_says_so(told, monkeypatch):
    monkeypatch.setattr(states, "MOST", 3)
    rows = [failing(f"s{number}") for number in range(6)]
    look(2)
    assert len(kinds()) == 4 and ("failing", "") in kinds()
    first = [int(subject) for _, subject in kinds() if subject]
    for row in rows[:2]:
        fail(row, 0)
    assert {row.pk for row in rows[:3]} == set(first)
    look(4)
    open_ = {int(subject) for _, subject in kinds(recovered_at=None) if subject}
    assert open_ == {rows[2].pk, rows[3].pk, rows[4].pk}, "who recovers makes room, and nobody else leaves"


def test_a_webhook_that_fails_is_tried_again_with_the_same_id_and_its_address_is_told_nowhere(told, receiver, caplog):
    change(told, MAIL=False)
    failing()
    look(2)
    receiver.status = 500
    run_burst()
    job = sent().get()
    assert (job.status, job.attempt) == ("retrying", 1)
    assert "127.0.0.1" in job.error and "answered 500" in job.error
    assert "/hook" not in f"{job.error} {job.reason} {job.attempts}"
    assert "/hook" not in caplog.text and SECRET not in caplog.text
    receiver.status = 200
    alerts.deliver(str(Alert.objects.get().pk), "opened", "webhook")
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] and first.body == second.body


def test_what_was_sent_or_was_never_told_is_not_sent(told, receiver):
    failing()
    look()
    key = str(Alert.objects.get().pk)
    assert not alerts.deliver(key, "opened", "webhook"), "nobody is to be told yet"
    look()
    assert alerts.deliver(key, "opened", "webhook") and not alerts.deliver(key, "opened", "webhook")
    assert not alerts.deliver(key, "recovered", "webhook") and not alerts.deliver(key, "opened", "pigeon")
    change(told, MAIL=False)
    assert not alerts.deliver(key, "opened", "mail")
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("failures", [2, 99])
def test_a_message_is_sent_once_though_its_note_fails(told, receiver, monkeypatch, caplog, failures):
    monkeypatch.setattr(sending, "NOTE_PAUSES_SECONDS", (0.0,) * 3)
    change(told, MAIL=False)
    failing()
    look(2)
    writes = []

    def refuse(execute, sql, params, many, context):
        if sql.startswith('UPDATE "django_delayq_alert"'):
            writes.append(sql)
            if len(writes) <= failures:
                raise OperationalError("database is locked")
        return execute(sql, params, many, context)

    alert = Alert.objects.get()
    with connection.execute_wrapper(refuse):
        assert alerts.deliver(str(alert.pk), "opened", "webhook")
    alert.refresh_from_db()
    assert len(receiver.requests) == 1
    assert (len(writes), bool(alert.sent)) == ((3, True) if failures == 2 else (4, False))
    assert ("was sent, but could not be recorded as sent" in caplog.text) == (failures == 99)


def test_a_redirect_is_not_followed_and_a_host_that_is_not_listed_gets_nothing(receiver):
    with Receiver() as other:
        receiver.status, receiver.location = 302, f"{other.url}/elsewhere"
        with pytest.raises(DeliveryFailed, match="answered 302, a redirect"):
            post(f"{receiver.url}/x", b"", {}, hosts=[receiver.host, other.host], timeout_seconds=5)
        with pytest.raises(DeliveryFailed, match="does not list"):
            post(f"{other.url}/x", b"", {}, hosts=[receiver.host], timeout_seconds=5)
        assert not other.requests and len(receiver.requests) == 1


class Dripping(Background):
    """Accepts one connection, and goes on sending a piece of an answer that never ends."""

    def __init__(self, begin, piece):
        super().__init__()
        self.begin, self.piece = begin, piece
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def watch(self):
        with self.listener, self.listener.accept()[0] as connection, suppress(OSError):
            connection.sendall(self.begin)
            while not self.ended.wait(0.02):
                connection.sendall(self.piece)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [(b"HTTP/1.1 ", b"2"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"HTTP/1.1 200 OK\r\nx: ", b"x")],
)
def test_a_receiver_that_drips_its_answer_has_one_deadline_for_the_whole_request(begin, piece):
    with Dripping(begin, piece) as slow:
        threading.Timer(3.0, slow.ended.set).start()
        with pytest.raises(DeliveryFailed, match="TimeoutError"):
            post(f"http://{slow.host}/x", b"", {}, hosts=[slow.host], timeout_seconds=0.3)
        assert not slow.ended.is_set()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of http.client, which does not close the answer of a proxy
def test_a_proxy_that_drips_its_answer_has_the_same_deadline(monkeypatch):
    with Dripping(b"HTTP/1.1 ", b"2") as slow:
        threading.Timer(3.0, slow.ended.set).start()
        monkeypatch.setenv("https_proxy", f"http://{slow.host}")
        with pytest.raises(DeliveryFailed, match="TimeoutError"):
            post("https://hooks.example.com/x", b"", {}, hosts=["hooks.example.com"], timeout_seconds=0.3)
        assert not slow.ended.is_set()
    gc.collect()


def test_all_addresses_of_a_host_have_one_deadline_together(monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        place = (socket.AF_INET, socket.SOCK_STREAM, 6, "", full.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: [place] * 20)
        began = time.monotonic()
        with pytest.raises(DeliveryFailed, match="TimeoutError"):
            post("https://hooks.example.com/x", b"", {}, hosts=["hooks.example.com"], timeout_seconds=0.3)
        assert time.monotonic() - began < 3, "one deadline for each would be six seconds"


def test_a_mail_server_that_says_nothing_holds_a_mail_for_a_while_only(settings, monkeypatch):
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        backend, (host, port) = "django.core.mail.backends.smtp.EmailBackend", silent.getsockname()
        if django.VERSION >= (6, 1):
            settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": {"host": host, "port": port}}}
        else:
            settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = backend, host, port
        settings.DELAYQ = {**settings.DELAYQ, "ALERTS": {"MAIL": ["ops@example.com"]}}
        row = Alert.objects.create(kind="failing", name="nightly", text="x", since=utcnow(), reported_at=utcnow())
        with pytest.raises(OSError, match="timed out"):
            alerts.deliver(str(row.pk), "opened", "mail")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://hooks.example.com/x", ""),
        ("https://HOOKS.example.com/x", ""),
        ("http://127.0.0.1:8000/x", ""),
        ("http://hooks.example.com/x", "must begin with https://"),
        ("https://hooks.example.com:8443/x", "does not list"),
        ("https://hooks.example.com.evil.org/x", "does not list"),
        ("https://evil.org\\@hooks.example.com/x", "no user name"),
        ("https://me:pw@hooks.example.com/x", "no user name"),
        ("https://hooks.example.com/x#y", "fragment"),
        ("https://hooks.example.com/a b", "not an address"),
        ("https://hooks.example.com/\r\nHost: x", "not an address"),
        ("https://[::1", "not an address"),
        ("/x", "not an address"),
    ],
)
def test_addresses_are_refused_unless_their_host_is_listed_as_it_stands(url, said):
    refusal = find_refusal(url, ("hooks.example.com", "127.0.0.1:8000"))
    assert said in refusal and bool(said) == bool(refusal)


def test_the_command_tells_where_no_worker_runs_and_leaves_it_to_workers_where_one_does(told, receiver, broker):
    failing()
    look()
    Alert.objects.update(since=utcnow() - HOUR)
    out = io.StringIO()
    call_command("delayq_status", "--alert", "--max-wait", "100000", stdout=out)
    assert len(kinds()) == 1 and not receiver.requests and not mail.outbox, "a live worker sends it"
    lose_workers(broker)
    receiver.status = 503
    err = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("delayq_status", "--alert", stdout=out, stderr=err)
    assert "Not sent: failing nightly opened, webhook: 127.0.0.1" in err.getvalue() and len(mail.outbox) == 1
    receiver.status = 200
    with pytest.raises(SystemExit):
        call_command("delayq_status", "--alert", stdout=out, stderr=err)
    assert len(receiver.requests) == 2 and len(mail.outbox) == 1
    run_burst()
    assert len(receiver.requests) == 2 and len(mail.outbox) == 1, "the jobs find it sent"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "must be a dict"),
        ({"MAILS": True}, "Did you mean 'MAIL'"),
        ({"MAIL": ["ops"]}, "list of addresses"),
        ({"WEBHOOK": "hooks.example.com/s3cret"}, r"not \*+"),
        ({"WEBHOOK": "https://hooks.example.com/s3cret"}, "HOSTS.* does not list 'hooks.example.com'"),
        ({"WEBHOOK": "https://h.example/s3cret", "HOSTS": ["h.example"]}, "SECRET.* is missing"),
        ({"SECRET": "s3cret"}, r"not \*+"),
        ({"HOSTS": ["https://h.example"]}, "list of hosts"),
        ({"EVERY": 0}, "from 1"),
    ],
)
def test_a_wrong_setting_says_what_to_write_and_no_secret(values, said):
    with pytest.raises(ImproperlyConfigured, match=said) as caught:
        parse(values)
    assert "s3cret" not in str(caught.value)


def test_checks_say_that_nobody_would_be_told(told):
    assert checks.check_alerts() == []
    told.ADMINS = []
    assert [each.id for each in checks.check_alerts()] == ["delayq.W004"]
    told.TASKS = NOT_OURS
    assert [each.id for each in checks.check_alerts()] == ["delayq.E005", "delayq.W004"]
    failing()
    look()
    with pytest.raises(ImproperlyConfigured, match="no alias of TASKS accepts them"):
        look()


def late(**more):
    """Make an hourly schedule that is expected to succeed within ten minutes of its due points; its last one, too."""
    values = {"kind": "every", "every": HOUR, "cron": "", "expected_within": timedelta(minutes=10), **more}
    row = schedule("hourly", **values)
    long_ago = utcnow() - 10 * HOUR
    Schedule._base_manager.filter(pk=row.pk).update(effective_from=long_ago, created_at=long_ago)
    return row


def state(row, next_due, **values):
    values = {"next_due_at": next_due, "last_status": "succeeded", **values}
    ScheduleState.objects.update_or_create(schedule=row, defaults=values)


def ran(row, minutes_ago, status, **values):
    values = {"due_at": utcnow() - timedelta(minutes=minutes_ago), **values}
    Run.build_for(row, values.pop("due_at"), status=status, **values).save()
    ScheduleState.objects.filter(schedule=row).update(last_status=status)


def is_late():
    return [each.name for each in find_late(10)] == ["hourly"]


def test_a_point_that_nobody_has_decided_is_late_after_its_time(well):
    row, now = late(), utcnow()
    state(row, now - timedelta(minutes=9))
    assert not is_late()
    state(row, now - timedelta(minutes=11))
    assert is_late()
    state(row, now + HOUR)
    assert not is_late()


@pytest.mark.parametrize("status", ["failed", "lost", "skipped"])
def test_a_point_without_success_is_late_until_something_succeeds(well, status):
    row = late()
    state(row, utcnow() + HOUR)
    ran(row, 5, status)
    assert not is_late()
    ran(row, 70, status)
    assert is_late(), "an older one is"
    ran(row, 1, "succeeded", origin="manual")
    assert not is_late(), "a run now ends it"


def test_a_backfill_of_the_point_ends_it_and_a_success_before_it_does_not(well):
    row = late()
    state(row, utcnow() + HOUR)
    ran(row, 80, "succeeded")
    ran(row, 20, "failed")
    assert is_late()
    ran(row, 20, "succeeded", origin="backfill", due_at=Run.objects.get(status="failed").due_at)
    assert not is_late()


def test_what_is_not_to_run_is_not_late(well):
    row = late()
    state(row, utcnow() - HOUR)
    assert is_late()
    Schedule.objects.filter(pk=row.pk).update(enabled=False)
    assert not is_late()
    Schedule._base_manager.filter(pk=row.pk).update(enabled=True, effective_from=utcnow() - timedelta(minutes=30))
    assert not is_late(), "the point was of a former definition"
    Schedule._base_manager.filter(pk=row.pk).update(effective_from=utcnow() - 10 * HOUR)
    assert is_late()
    actions.pause("default")
    assert not is_late()
    actions.resume("default")
    actions.pause(task=row.task)
    assert not is_late()
    actions.resume(task=row.task)
    ScheduleState.objects.update(condition="broken")
    assert not is_late()


def test_late_is_told_of_the_schedule_and_is_a_problem_of_the_status(told):
    row = late()
    state(row, utcnow() - HOUR)
    look(2)
    assert ("late", str(row.pk)) in kinds()
    assert "has not succeeded within 0:10:00" in Alert.objects.get(kind="late").text
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("delayq_status", "--json", stdout=out)
    found = json.loads(out.getvalue())
    assert found["late"] == {"count": 1, "names": ["hourly"]}
    assert "late" in [problem["code"] for problem in found["problems"]]


def test_whoever_may_view_alerts_reads_them_and_nobody_changes_them(told):
    failing("<b>nightly</b>")
    look(2)
    (alert,) = Alert.objects.all()
    page = client_for("view_alert").get("/admin/django_delayq/alert/")
    assert "&lt;b&gt;nightly&lt;/b&gt;" in page.content.decode()
    assert client_for("view_schedule").get("/admin/django_delayq/alert/").status_code == 403
    root = client_for(superuser=True)
    for path in ("add/", f"{alert.pk}/delete/"):
        assert root.post(f"/admin/django_delayq/alert/{path}").status_code == 403
    page = root.get(f"/admin/django_delayq/alert/{alert.pk}/change/")
    assert page.status_code == 200 and 'name="_save"' not in page.content.decode()


def test_rows_of_what_has_recovered_go_after_ninety_days(told):
    row = failing()
    look(2)
    fail(row, 0)
    look(3)
    Alert.objects.update(recovered_at=utcnow() - timedelta(days=91))
    look()
    assert not Alert.objects.exists()


def test_nothing_is_told_in_somebody_elses_transaction(told):
    failing()
    look()
    Alert.objects.update(since=utcnow() - HOUR)
    heard = []
    alert_changed.connect(lambda **more: heard.append(more["what"]), weak=False, dispatch_uid="t")
    with transaction.atomic():
        alerts.look_now()
        transaction.set_rollback(True)
    alert_changed.disconnect(dispatch_uid="t")
    assert heard == [] and not sent().exists()
