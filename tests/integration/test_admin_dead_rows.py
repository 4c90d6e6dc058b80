"""Durable jobs that are dead, in the admin: listed with those of Redis, shown, retried, deleted; also without Redis."""

import re
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote
from django.core.management import call_command

from django_delayq.backend import listing
from django_delayq.broker.web import forget_broker
from django_delayq.fields import utcnow
from django_delayq.models import Job
from django_delayq.timing import to_ms
from tests.app import tasks
from tests.integration.admin_pages import HOSTILE, client_for, texts
from tests.integration.job_pages import JOBS, build, counts, dead, dead_row
from tests.jobs.durable_support import durable, row_of
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "hunter2hunter2"
DEAD = f"{JOBS}?state=dead"
START_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def built(broker):
    tasks.CALLS.clear()
    build(broker)
    forget_broker()


@pytest.fixture
def viewer():
    """A client that may only see."""
    return client_for("view_redisjob", "view_job_arguments")


def url(row, view="change"):
    return f"{JOBS}{quote(row.result_id)}/{view}/"


def text_of(client, address):
    response = client.get(address)
    assert response.status_code == 200, response
    return response.content.decode()


def order(client, action, *rows):
    values = {"action": action, "_selected_action": [row.result_id for row in rows], "apply": "yes"}
    return texts(client.post(DEAD, values, follow=True))


def test_the_dead_of_the_database_and_of_redis_are_one_list_with_one_number(viewer, broker):
    before = dead_row(tasks.add.module_path, died_ms=START_MS)
    wanted = dead(broker)
    after = dead_row(
        tasks.note.module_path, error="Traceback\nKeyError: 'the last line'", died_ms=to_ms(utcnow()) + 5000
    )
    page = viewer.get(DEAD)
    assert [row.id for row in page.context["cl"].result_list] == [after.result_id, wanted, before.result_id]
    assert (page.context["cl"].tabs[3]["count"], page.context["cl"].tabs[3]["more"]) == (3, False)
    text = page.content.decode()
    assert "KeyError: &#x27;the last line&#x27;" in text and "Traceback" not in text and url(after) in text
    assert viewer.get(JOBS, {"state": "dead", "queue": "mail"}).context["cl"].result_list == []


def test_the_list_is_paged(viewer, broker):
    rows = [dead_row(died_ms=START_MS + n) for n in range(60)]
    made = [row.result_id for row in reversed(rows)]
    shared = [dead(broker) for _ in range(50)]
    found, address, sizes = [], DEAD, []
    while address:
        listing = viewer.get(address).context["cl"]
        found += [row.id for row in listing.result_list]
        sizes.append(len(listing.result_list))
        assert len(sizes) < 10, "it comes to an end"
        assert bool(listing.first_page) == (len(sizes) > 1)
        address = JOBS + listing.next_page if listing.next_page else ""
    assert (sizes, found[50:]) == ([50, 50, 10], made)
    assert set(found[:50]) == set(shared)


def test_more_than_are_counted_are_told_as_more(viewer, monkeypatch):
    monkeypatch.setattr(listing, "MOST_COUNTED", 2)
    for _ in range(3):
        dead_row()
    assert '<span class="delayq-count">2+</span>' in text_of(viewer, DEAD)


def test_a_dead_job_is_shown_whole_and_without_its_secrets(viewer, monkeypatch):
    error = f"Traceback\nRuntimeError: {SECRET} refused, password={SECRET}x, {HOSTILE}"
    row = dead_row(tasks.note.module_path, HOSTILE, error=error, kwargs={"password": SECRET, "seconds": 1.5})
    page = text_of(viewer, url(row))
    assert tasks.note.module_path in page and row.result_id in page and ">dead<" in page
    assert "&lt;script&gt;" in page and HOSTILE not in page
    assert "1.5" in page and "w-1" in page and "builtins.RuntimeError" in page and ">durable<" in page
    assert SECRET not in page and "password=********" in page
    assert re.search(r"\d+ characters in the database", page)


def test_a_row_that_cannot_be_read_can_only_be_deleted(boss):
    row = dead_row(call='{"task":"x","from":"the future"}')
    assert "cannot be read" in text_of(boss, DEAD) and "cannot be read" in text_of(boss, url(row))
    assert [button["label"] for button in boss.get(url(row)).context["orders"]] == ["Delete"]
    assert "cannot be retried" in order(boss, "retry", row)[0]
    assert order(boss, "delete_selected", row) == ["1 job is deleted."]


def test_retry_and_delete_ask_first_and_then_do_it(boss, viewer, broker):
    retried, deleted = dead_row(tasks.add.module_path, 1), dead_row(tasks.add.module_path, 2)
    assert [button["label"] for button in boss.get(url(retried)).context["orders"]] == ["Retry", "Delete"]
    assert viewer.get(url(retried)).context["orders"] == []
    for row, name in ((retried, "retry"), (deleted, "delete")):
        assert row.result_id in text_of(boss, url(row, name))
        assert viewer.post(url(row, name)).status_code == 403
        assert Job.objects.filter(pk=row.pk, status="FAILED").exists(), "nothing was done yet"
    assert texts(boss.post(url(retried, "retry"), follow=True)) == ["1 job is tried again."]
    assert texts(boss.post(url(deleted, "delete"), follow=True)) == ["1 job is deleted."]
    assert [job.pk for job in Job.objects.all()] == [retried.pk]
    run_burst()
    assert (tasks.CALLS, Job.objects.get().status) == ([(1, 1)], "SUCCESSFUL")
    told = {(entry.object_id, entry.action_flag) for entry in LogEntry.objects.all()}
    assert told == {(retried.result_id, CHANGE), (deleted.result_id, DELETION)}
    page = text_of(boss, url(retried))
    assert "successful" in page and boss.get(url(retried)).context["orders"] == []


def test_an_action_says_what_became_of_each(boss, broker):
    rows = [dead_row(tasks.add.module_path, n) for n in range(3)]
    waits = durable(tasks.add, run_after=timedelta(hours=1)).enqueue(9)
    gone = dead_row()
    page = boss.post(DEAD, {"action": "retry", "_selected_action": [row.result_id for row in (*rows, gone)]})
    assert all(f"{row.task} {row.result_id}" in page.content.decode() for row in rows)
    gone.delete()
    assert order(boss, "retry", *rows, gone, row_of(waits)) == [
        "3 jobs are tried again.",
        "1 job is not there any more: it has ended, or somebody deleted it.",
        "1 job stays as it is: it is not dead, somebody may have retried it.",
    ]
    assert order(boss, "cancel", rows[0]) == ["No action selected."]
    assert counts(broker) == (1, 3, 0, 0)


def test_a_job_whose_key_another_one_has_is_told_so(boss, broker):
    task = durable(tasks.flaky, unique_key="k")
    row = row_of(task.enqueue("/nonexistent/path", 1))
    run_burst()
    task.enqueue("/nonexistent/path", 1)
    assert order(boss, "retry", row) == ["1 job stays as it is: another job with its unique key waits already."]
    assert not LogEntry.objects.exists()


def test_a_dead_job_is_not_cancelled_from_another_list(boss):
    row = dead_row()
    values = {"action": "cancel", "_selected_action": [row.result_id], "apply": "yes"}
    (told,) = texts(boss.post(f"{JOBS}?{urlencode({'state': 'waiting'})}", values, follow=True))
    assert "it has died. Retry or delete it." in told


# -- where Redis is away


@pytest.mark.parametrize("away", ["unreachable", "not mirrored"])
def test_without_redis_the_dead_of_the_database_are_listed_retried_and_deleted(boss, broker, settings, away, request):
    plain = dead(broker)
    rows = [dead_row(tasks.add.module_path, n, died_ms=START_MS + n) for n in range(52)]
    if away == "unreachable":
        request.getfixturevalue("dead_redis")
    else:
        settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    page = boss.get(DEAD)
    assert len(page.context["cl"].result_list) == 50
    assert "only dead jobs of the database are listed" in page.content.decode()
    assert plain not in page.content.decode()
    second = boss.get(JOBS + page.context["cl"].next_page).context["cl"]
    assert [row.id for row in second.result_list] == [rows[1].result_id, rows[0].result_id]
    assert rows[0].result_id in text_of(boss, url(rows[0]))
    assert rows[0].task in text_of(boss, url(rows[0], "retry"))
    asked = boss.post(DEAD, {"action": "retry", "_selected_action": [rows[0].result_id, rows[1].result_id]})
    assert f"{rows[1].task} {rows[1].result_id}" in asked.content.decode()
    assert order(boss, "retry", rows[0], rows[1]) == ["2 jobs are tried again."]
    assert texts(boss.post(url(rows[2], "delete"), follow=True))[0] == "1 job is deleted."
    assert Job.objects.filter(status="READY").count() == 2


def test_without_redis_it_is_told_what_was_done_and_what_is_not_known(boss, broker, dead_redis):
    row, other = dead_row(), dead_row()
    other.delete()
    told = order(boss, "retry", row, other)
    assert told[0] == "1 job is tried again."
    assert "not known what became of 1 job" in told[1]


def test_a_job_that_was_revived_without_redis_is_put_there(boss, broker, settings):
    row = dead_row(tasks.add.module_path, 7)
    mirrored = settings.DELAYQ
    settings.DELAYQ = {**mirrored, "MIRROR": False}
    order(boss, "retry", row)
    settings.DELAYQ = mirrored
    assert counts(broker) == (0, 0, 0, 0)
    Job.objects.update(enqueued_at=utcnow() - timedelta(seconds=5))
    call_command("delayq_sync")
    run_burst()
    assert tasks.CALLS == [(7, 1)]
