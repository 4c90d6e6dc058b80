"""In the transaction of a TestCase, and without one: what a task does to the database, and after the commit."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from django_delayq.models import Schedule
from django_delayq.testing import Runner
from tests.testing import tasks

HOUR = timedelta(hours=1)


def hourly(task: str, *args: object) -> Schedule:
    return Schedule.objects.create(
        name=task, task=f"tests.testing.tasks.{task}", args=list(args), kind="every", every=HOUR
    )


class Both:
    """What holds in either."""

    def setUp(self):
        super().setUp()
        self.delayq = self.enterContext(Runner())
        tasks.COMMITTED.clear()

    def test_callbacks_of_a_task_are_called(self):
        hourly("after_commit", "x")
        self.delayq.run_due(HOUR)
        self.assertEqual(sorted(tasks.COMMITTED), ["X", "x"])
        self.delayq.run_due(HOUR)
        self.assertEqual(sorted(tasks.COMMITTED), ["X", "X", "x", "x"])

    def test_a_failed_query_spoils_only_its_own_task(self):
        for catches, status in ((False, "failed"), (True, "succeeded")):
            with self.subTest(catches=catches):
                Schedule.objects.all().delete()
                Group.objects.all().delete()
                hourly("spoil", catches)
                hourly("after_commit", "y")
                statuses = {run.schedule_name: run.status for run in self.delayq.run_due(HOUR)}
                self.assertEqual(statuses, {"spoil": status, "after_commit": "succeeded"})

    def test_the_connection_stays_the_same(self):
        hourly("after_commit", "z")
        tasks.after_commit.enqueue("job")
        before = connection.connection
        self.delayq.run_due(HOUR)
        self.assertIs(connection.connection, before)


class InATransaction(Both, TestCase):
    """The whole test is a transaction."""

    def test_what_a_task_enqueues_in_the_transaction_of_the_test_runs(self):
        tasks.after_commit.enqueue("at once")
        with transaction.atomic():
            tasks.after_commit.enqueue("in a block")
        hourly("follow_up", "of a schedule")
        self.delayq.run_due(HOUR)
        for text in ("at once", "in a block", "of a schedule"):
            self.delayq.assert_enqueued(tasks.after_commit, args=[text], count=1)
        self.assertEqual(len(tasks.COMMITTED), 6)

    def test_a_rolled_back_schedule_does_not_run(self):
        with self.assertRaises(RuntimeError), transaction.atomic():
            hourly("after_commit", "never")
            raise RuntimeError
        self.assertEqual(self.delayq.run_due(2 * HOUR), [])


class WithoutATransaction(Both, TransactionTestCase):
    """Each statement is committed."""

    def test_callbacks_are_called_once_where_the_test_itself_commits(self):
        hourly("after_commit", "x")
        with transaction.atomic():
            self.delayq.run_due(HOUR)
        self.assertEqual(sorted(tasks.COMMITTED), ["X", "x"])

    def test_what_a_task_wrote_before_it_failed_stays(self):
        hourly("spoil", False)
        self.delayq.run_due(HOUR)
        self.assertEqual(Group.objects.count(), 1)


@pytest.mark.django_db(transaction=True)
def test_the_fixture_works_without_a_transaction_too(delayq):
    hourly("after_commit", "x")
    assert [run.status for run in delayq.run_due(HOUR)] == ["succeeded"]
    assert not connection.in_atomic_block
