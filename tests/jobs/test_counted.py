"""Jobs in the counters: durable ones, retries, and those whose workers die."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq import conf, minutes
from django_delayq.counters import outcomes
from tests.app import tasks
from tests.jobs.support import run_burst, tasks_setting
from tests.jobs.test_worker import died

pytestmark = pytest.mark.django_db(transaction=True)


def counted(broker):
    found = minutes.read_counts(datetime.now(UTC) - timedelta(hours=1), broker=broker)
    return {(kind, task.rpartition(".")[2]): outcomes(tally) for (kind, _, task), tally in found.items()}


@pytest.mark.parametrize(
    "options", [{}, {"durable": True}, {"results": "database"}], ids=["plain", "durable", "results"]
)
def test_each_attempt_of_a_job_is_counted_once(broker, settings, options):
    settings.TASKS = tasks_setting(other={**options, "max_attempts": 2, "backoff": 3600})
    tasks.add.using(backend="other").enqueue(1)
    tasks.fail.using(backend="other").enqueue()
    run_burst()
    run_burst()
    assert counted(broker) == {("jobs", "add"): {"succeeded": 1}, ("jobs", "fail"): {"retried": 1}}


def test_a_job_that_kills_its_workers_is_counted_as_lost(broker):
    run_burst()
    died(tasks.add.enqueue(1), times=conf.get_config().max_reclaims + 1)
    run_burst()
    assert counted(broker) == {("jobs", "add"): {"lost": 1}}
