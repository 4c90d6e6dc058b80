"""What is ordered for all schedules that match: asked, carried out by workers in batches, watched, cancelled."""

import re
import threading
from datetime import timedelta

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, InternalError, OperationalError, ProgrammingError, connections
from django.db.models import ProtectedError

from django_delayq import bulk_actions
from django_delayq.admin import bulk
from django_delayq.fields import utcnow
from django_delayq.models import BulkAction, Run, Schedule
from django_delayq.worker import upkeep
from tests.acceptance.support import wait_until
from tests.integration.admin_pages import HOSTILE, LIST, client_for, make, texts
from tests.integration.mirroring import absent, mirrored
from tests.integration.test_mirror_upkeep import running  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What is for more than three schedules is ordered, and done by two."""
    monkeypatch.setattr(bulk, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(bulk_actions, "BATCH", 2)


@pytest.fixture
def five():
    return [make(f"s{number}") for number in range(5)]


def post(client, action: str, address: str = LIST, **values: str):
    first = Schedule.objects.order_by("pk").first()
    chosen = {"action": action, "select_across": "1", "_selected_action": first and first.pk}
    return client.post(address, {**chosen, **values}, follow=True)


def carry_out() -> int:
    """Do all of it; return in how many batches."""
    batches = 0
    while bulk_actions.carry_out():
        batches += 1
    return batches


def progress(client, order: BulkAction) -> str:
    page = client.get(f"{LIST}bulk/{order.pk}/").content.decode()
    return re.sub(r"\s+", " ", page)


def test_it_asks_then_orders_and_shows_how_far_it_is(boss, five, broker):
    page = post(boss, "pause").content.decode()
    assert "all 5 schedules that match" in page and 'name="reason"' in page
    assert not BulkAction.objects.exists()
    assert post(boss, "pause", apply="1", reason="x" * 201).status_code == 200 and not BulkAction.objects.exists()
    response = post(boss, "pause", apply="1", reason="storm")
    order = BulkAction.objects.get()
    assert response.redirect_chain == [(f"{LIST}bulk/{order.pk}/", 302)]
    assert not Schedule.objects.paused().exists(), "nothing of it is done in the request"
    page = progress(boss, order)
    assert "waits for a worker" in page and "0 of 5 schedules are done." in page and 'http-equiv="refresh"' in page
    assert "Watch or cancel" in boss.get(LIST).content.decode()
    make("later")
    assert bulk_actions.carry_out()
    page = progress(boss, order)
    assert "2 of 5 schedules are done." in page and 'value="2"' in page and "40 %" in page and "left" in page
    assert carry_out() == 2
    assert [row.name for row in Schedule.objects.filter(enabled=True)] == ["later"]
    assert {row.pause_reason for row in Schedule.objects.paused()} == {"storm"}
    page = progress(boss, order)
    assert "It is done." in page and 'http-equiv="refresh"' not in page and "Cancel the rest" not in page
    assert "Watch or cancel" not in boss.get(LIST).content.decode()
    logged = LogEntry.objects.filter(content_type__model="schedule").order_by("object_repr")
    assert [(entry.object_repr, entry.get_change_message()) for entry in logged] == [
        (row.name, "Paused: storm") for row in five
    ]
    assert all(absent(broker, row) for row in five), "mirrored with each batch"


def test_each_action_does_to_many_what_it_does_to_one(boss, five, broker):
    for action in ("run_now", "resume", "delete_selected"):
        Schedule.objects.filter(pk=five[0].pk).update(enabled=False, pause_reason="why")
        assert "all 5 schedules that match" in post(boss, action).content.decode()
        post(boss, action, apply="1")
        assert carry_out() == 3
        if action == "run_now":
            assert sorted(Run.objects.values_list("schedule", flat=True)) == [row.pk for row in five]
            assert broker.views([(f"r{run.pk}", "default") for run in Run.objects.all()])[0].score_ms is not None
        elif action == "resume":
            assert not Schedule.objects.paused().exists() and mirrored(broker, Schedule.objects.get(name="s0"))
    assert not Schedule.objects.exists() and all(absent(broker, row) for row in five)
    assert LogEntry.objects.filter(action_flag=DELETION).count() == 5


def test_few_are_done_at_once(boss):
    make("a"), make("b")
    assert texts(post(boss, "resume", apply="1")) == ["2 schedules go on."]
    assert not BulkAction.objects.exists()


def test_only_what_matched_is_done_and_a_search_narrows_it(boss, five):
    for number in range(4):
        make(f"mail {number}")
    post(boss, "pause", f"{LIST}?q=mail", apply="1", reason="")
    Schedule.objects.get(name="mail 0").delete()
    carry_out()
    order = BulkAction.objects.get()
    assert (order.total, order.done, order.changed) == (4, 4, 3)
    assert sorted(row.name for row in Schedule.objects.paused()) == ["mail 1", "mail 2", "mail 3"]
    assert "1 of them was gone already." in progress(boss, order)


def test_who_may_not_change_or_delete_orders_watches_and_cancels_nothing(boss, five):
    viewer, changer = client_for("view_schedule"), client_for("view_schedule", "change_schedule")
    deleter = client_for("view_schedule", "delete_schedule")
    post(viewer, "pause", apply="1", reason="")
    post(changer, "delete_selected", apply="1")
    post(deleter, "pause", apply="1", reason="")
    assert not BulkAction.objects.exists()
    post(boss, "delete_selected", apply="1")
    address = f"{LIST}bulk/{BulkAction.objects.get().pk}/"
    for client, status in ((viewer, 403), (changer, 403), (deleter, 200), (boss, 200)):
        assert client.get(address).status_code == status
    assert "Watch or cancel" not in viewer.get(LIST).content.decode()
    assert viewer.post(f"{address}cancel/").status_code == changer.post(f"{address}cancel/").status_code == 403
    assert boss.get(f"{address}cancel/").status_code == 405
    assert boss.get(f"{LIST}bulk/999999/").status_code == 404 == boss.get(f"{LIST}bulk/{2**70}/").status_code
    assert BulkAction.objects.open().exists()


def test_what_is_cancelled_ends_where_it_is(boss, five):
    post(boss, "pause", apply="1", reason=HOSTILE)
    order = BulkAction.objects.get()
    assert HOSTILE not in progress(boss, order)
    assert bulk_actions.carry_out()
    page = boss.post(f"{LIST}bulk/{order.pk}/cancel/", follow=True).content.decode()
    assert "It was cancelled; what was done stays done." in page and "2 of 5" in page
    assert carry_out() == 0 and Schedule.objects.paused().count() == 2
    assert texts(boss.post(f"{LIST}bulk/{order.pk}/cancel/", follow=True)) == ["It had ended already."]


def order_pause(rows, **values) -> BulkAction:
    return bulk_actions.order("pause", [row.pk for row in rows], logged="Paused.", **values)


def fail_once(monkeypatch, error: Exception) -> None:
    """Let the second batch do its work, and then fail."""
    calls: list[int] = []
    pause = bulk_actions.DO["pause"]

    def failing(schedules, reason):
        changed = pause(schedules, reason)
        calls.append(changed)
        if len(calls) == 2:
            raise error
        return changed

    monkeypatch.setitem(bulk_actions.DO, "pause", failing)


@pytest.mark.parametrize("kind", [OperationalError, InternalError, ProgrammingError, IntegrityError])
def test_a_batch_that_an_outage_breaks_off_is_done_again(five, monkeypatch, kind):
    order_pause(five)
    fail_once(monkeypatch, kind("the database does not want this now"))
    bulk_actions.carry_out()
    with pytest.raises(kind):
        bulk_actions.carry_out()
    assert BulkAction.objects.get().done == Schedule.objects.paused().count() == 2, "nothing of it is half done"
    assert carry_out() == 2 and BulkAction.objects.get().changed == 5


def test_an_error_that_would_come_again_ends_it_and_holds_up_no_other(boss, five, monkeypatch):
    first, _ = order_pause(five), order_pause(five)
    fail_once(monkeypatch, ProtectedError("somebody needs them", set()))
    carry_out()
    page = progress(boss, first)
    assert "It was given up after an error." in page and "ProtectedError: " in page and "somebody needs them" in page
    assert [(row.done, row.finished_at is None) for row in BulkAction.objects.order_by("pk")] == [
        (2, False),
        (5, False),
    ]


def test_an_order_that_the_database_refuses_holds_up_no_other(five, monkeypatch):
    order_pause(five), bulk_actions.order("run_now", [row.pk for row in five], logged="Run now.")

    def refused(schedules, reason):
        raise IntegrityError("refused")

    monkeypatch.setitem(bulk_actions.DO, "pause", refused)
    with pytest.raises(IntegrityError):
        carry_out()
    assert [row.done for row in BulkAction.objects.order_by("pk")] == [0, 5]


def test_several_workers_do_each_once(five):
    bulk_actions.order("run_now", [row.pk for row in five], logged="Run now.")
    start, failed = threading.Barrier(4), []

    def work():
        start.wait()
        try:
            for _ in range(20):
                try:
                    bulk_actions.carry_out()
                except OperationalError as error:  # SQLite has one writer
                    failed.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    carry_out()
    assert sorted(Run.objects.values_list("schedule", flat=True)) == [row.pk for row in five]


def test_a_running_worker_does_it_beside_its_work(five, running, monkeypatch):  # noqa: F811
    monkeypatch.setattr(upkeep, "BULK_SECONDS", 0.1)
    running()
    order_pause(five)
    wait_until(lambda: not BulkAction.objects.open().exists())
    assert Schedule.objects.paused().count() == 5


def test_a_user_who_is_gone_keeps_nothing_from_being_done(five):
    user = User.objects.create_user("gone")
    order_pause(five, user=user)
    user.delete()
    carry_out()
    assert BulkAction.objects.get().user_name == "gone"
    assert Schedule.objects.paused().count() == 5 and not LogEntry.objects.exists()


def test_what_ended_a_month_ago_is_forgotten(five):
    old, open_, _ = order_pause(five), order_pause(five), order_pause(five)
    BulkAction.objects.filter(pk=old.pk).update(finished_at=utcnow() - timedelta(days=31))
    order_pause(five)
    assert not BulkAction.objects.filter(pk=old.pk).exists() and BulkAction.objects.filter(pk=open_.pk).exists()
