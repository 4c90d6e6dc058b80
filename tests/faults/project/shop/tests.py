"""An ordinary suite: nothing in it knows of Redis, and all of it would write there."""

import multiprocessing
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path
from urllib.request import urlopen

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import LiveServerTestCase, TestCase, TransactionTestCase
from django.utils import timezone

from django_delayq import actions
from django_delayq.calls import parse_id
from django_delayq.calls.compat import task_backends
from django_delayq.models import Run, Schedule
from django_delayq.testing import Runner
from shop import child
from shop.tasks import charge

HOUR = timedelta(hours=1)


def schedule():
    """Save a schedule."""
    return Schedule.objects.create(name="charging", task="shop.tasks.charge", args=[1], kind="every", every=HOUR)


class OrdinaryTests(TestCase):
    """In a transaction that is never committed."""

    def test_jobs(self):
        backend = task_backends["default"]
        result = charge.enqueue(42)
        later = charge.using(run_after=timezone.now() + HOUR).enqueue(43)
        backend.enqueue_many([(charge, [44], {}), (charge, [45], {})])
        result.refresh()
        self.assertFalse(result.is_finished)
        self.assertEqual(backend.get_result(later.id).args, [43])
        self.assertTrue(backend.reschedule(later.id, 2 * HOUR))
        self.assertTrue(backend.cancel(result.id))
        self.assertTrue(backend.get_result(result.id).is_finished)

    def test_jobs_after_a_commit(self):
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: charge.enqueue(42))
            charge.enqueue(43)
            schedule()
        with Runner() as delayq:
            delayq.assert_enqueued(charge, args=[42], count=1)
            delayq.assert_enqueued(charge, args=[43], count=1)
            delayq.run_due()
            self.assertEqual({job.return_value for job in delayq.enqueued}, {"charged 42", "charged 43"})

    def test_what_other_tests_enqueued_is_not_seen(self):
        with Runner() as delayq:
            self.assertEqual(delayq.enqueued, [])


class CommittedTests(TransactionTestCase):
    """Everything is committed."""

    def test_schedules(self):
        row = schedule()
        row.pause("closed")
        row.resume()
        Schedule.objects.filter(pk=row.pk).update(every=2 * HOUR)
        actions.run_now(row)
        actions.backfill(row, timezone.now() - HOUR, timezone.now())
        self.assertTrue(Run.objects.exists())
        row.delete()

    def test_jobs(self):
        kept, cancelled = charge.enqueue(1), charge.enqueue(2)
        self.assertTrue(task_backends["default"].cancel(cancelled.id))
        self.assertTrue(task_backends["default"].reschedule(kept.id, HOUR))
        kept.refresh()
        self.assertEqual(Run.objects.count(), 2)

    def test_the_admin(self):
        User.objects.create_superuser("boss", password="boss")
        self.client.login(username="boss", password="boss")
        row = schedule()
        result = charge.enqueue(1)
        pages = ["", "django_delayq/schedule/", f"django_delayq/schedule/{row.pk}/change/", "django_delayq/run/"]
        for page in (*pages, "django_delayq/run/failures/", f"django_delayq/run/{parse_id(result.id)[0]}/change/"):
            self.assertIn(self.client.get(f"/admin/{page}", follow=True).status_code, (200, 503), page)
        asked = {"action": "run_now", "_selected_action": [row.pk]}
        self.client.post("/admin/django_delayq/schedule/", asked, follow=True)
        asked = {"action": "cancel", "_selected_action": [parse_id(result.id)[0]], "apply": "1"}
        self.client.post("/admin/django_delayq/run/", asked, follow=True)

    def test_commands(self):
        row = schedule()
        for name in ("delayq_sync", "delayq_status", "delayq_worker"):
            with self.assertRaisesRegex(CommandError, "test|MIRROR"):
                call_command(name, stdout=StringIO())
        call_command("delayq_status", row.name, stdout=StringIO())
        call_command("check", "--deploy", stdout=StringIO(), stderr=StringIO())


class LiveTests(LiveServerTestCase):
    """A server in a thread."""

    def test_a_page_that_enqueues(self):
        with urlopen(f"{self.live_server_url}/order/") as page:  # noqa: S310 - our own server
            self.assertEqual(task_backends["default"].get_result(page.read().decode()).args, [1])


class ChildTests(TransactionTestCase):
    """Processes that a test starts."""

    def manage(self, *arguments):
        """Run a command of the project."""
        command = [sys.executable, Path(__file__).parents[1] / "manage.py", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def test_a_command(self):
        done = self.manage("place_order")
        self.assertEqual(done.stdout.strip(), "READY", done.stderr)

    def test_a_worker_refuses_to_start(self):
        done = self.manage("delayq_worker", "--burst")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "DELAYQ_NO_REDIS|MIRROR")

    def test_a_process_of_multiprocessing(self):
        if multiprocessing.current_process().daemon:
            self.skipTest("a process of --parallel may have none")
        for method in ("spawn", "fork", "forkserver"):
            process = multiprocessing.get_context(method).Process(target=child.place_order)
            process.start()
            process.join()
            self.assertEqual(process.exitcode, 0)


@pytest.mark.django_db
class TestFunctions:
    """As pytest has them."""

    def test_a_job(self):
        charge.enqueue(1)
        charge.enqueue(2)
        with Runner() as delayq:
            assert [job.args for job in delayq.enqueued] == [[1], [2]]

    def test_what_is_left(self):
        charge.enqueue(3)

    def test_what_other_tests_enqueued_is_not_seen(self):
        with Runner() as delayq:
            assert delayq.enqueued == []
