"""What is written together is written in one transaction of the app's database, not of the default one."""

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, transaction

from django_delayq import actions, ledger
from django_delayq.models import Run, ScheduleState, Tombstone
from tests.app import tasks
from tests.integration.mirroring import schedule
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "schedules"])


def members(broker):
    return broker.read_stats(broker.list_shards()[:1])[0].members


def test_an_order_reaches_redis_with_the_commit(broker):
    row = schedule(cron=DAILY_CRON)
    with transaction.atomic(using="schedules"):
        actions.run_now(row)
        assert members(broker) == 1, "the schedule alone"
    assert members(broker) == 2
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="schedules"):
        actions.run_now(row)
        1 / 0  # noqa: B018 - the transaction fails
    assert members(broker) == 2


def test_a_save_that_is_refused_leaves_no_tombstone_of_its_move():
    schedule("taken")
    row = schedule("s")
    row.name, row.queue = "taken", "mail"
    with pytest.raises(IntegrityError):
        row.save()
    assert not Tombstone.objects.exists()


def test_an_outcome_without_its_state_is_not_kept(broker, monkeypatch):
    row = schedule(cron=DAILY_CRON)
    make_due(broker, row)
    row.refresh_from_db()

    def fail(*args):
        raise OperationalError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(ledger.recording, "write_states", fail)
        with pytest.raises(DatabaseError):
            ledger.record([ledger.Outcome(Run.build_for(row, row.created_at, status="succeeded"), row)])
    assert not Run.objects.exists()
    run_burst()
    assert Run.objects.get().status == "succeeded"
    assert ScheduleState.objects.get().run_count == 1


def test_a_job_is_covered_by_a_transaction_on_the_apps_database_only(broker, recwarn):
    told = pytest.warns(RuntimeWarning, match="open on the database 'default', but jobs are rows of 'schedules'")
    with told as warned, pytest.raises(ZeroDivisionError), transaction.atomic(using="default"):
        tasks.add.enqueue(1)
        raise ZeroDivisionError
    assert Run.objects.count() == 1, "it was committed at once"
    assert [warning.filename for warning in warned] == [__file__]
    recwarn.clear()
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="default"), transaction.atomic(using="schedules"):
        tasks.add.enqueue(2)
        raise ZeroDivisionError
    assert (Run.objects.count(), list(recwarn)) == (1, [])
    run_burst()
    assert Run.objects.get().status == "succeeded"
