"""Who sends Redis nothing: chosen in one place, told once, and then nobody does. F38 plays whole suites."""

import logging
import os
from datetime import timedelta

import pytest
from django.core import mail
from django.core.management import CommandError, call_command
from django.template import Template
from django.test.utils import instrumented_test_render, setup_test_environment, teardown_test_environment

from django_delayq import conf
from django_delayq.calls.compat import task_backends
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.index import Broker, web
from django_delayq.models import Run, Schedule
from django_delayq.testing import Runner
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.app import tasks
from tests.jobs.support import retried

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture
def ordinary(settings):
    """What stands in the settings of a project whose tests say nothing of Redis."""
    settings.DELAYQ = {name: value for name, value in settings.DELAYQ.items() if name != "REDIS_IN_TESTS"}


@pytest.fixture
def held(broker, prefix):
    """Return what returns all that Redis holds of the test's prefix."""
    return lambda: {key: broker.client.dump(key) for key in broker.client.scan_iter(match=f"*{prefix}*")}


def test_the_choice_goes_by_django_s_test_environment_and_by_nothing_else(ordinary, monkeypatch):
    assert conf.explain_no_redis().startswith("This is a test")
    assert os.environ[conf.NO_REDIS]
    teardown_test_environment()
    try:
        with monkeypatch.context() as development:  # e-mail in memory, django-debug-toolbar
            development.setattr(mail, "outbox", [], raising=False)
            development.setattr(Template, "_render", instrumented_test_render)
            assert conf.explain_no_redis() == ""
        assert conf.get_config().mirror
        assert conf.NO_REDIS not in os.environ
    finally:
        setup_test_environment(debug=False)
    assert not conf.get_config().mirror


def test_tests_that_say_so_have_the_real_thing_and_what_they_start_too(ordinary, settings):
    assert conf.explain_no_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS_IN_TESTS": True}
    assert conf.NO_REDIS not in os.environ
    assert (conf.explain_no_redis(), conf.get_config().mirror) == ("", True)
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    assert conf.explain_no_redis() == "DELAYQ['MIRROR'] is False"


def test_the_choice_is_logged_once(ordinary, caplog, monkeypatch):
    monkeypatch.setattr(conf, "_logged", set())
    with caplog.at_level(logging.INFO, "django_delayq"):
        for number in range(3):
            tasks.add.enqueue(number)
    assert [record.getMessage() for record in caplog.records] == [
        "Nothing is sent to Redis. This is a test, and DELAYQ['REDIS_IN_TESTS'] is not True."
    ]


def test_whoever_would_connect_is_refused(ordinary):
    for make in (
        lambda: Broker(timeout_seconds=1),
        lambda: Worker(WorkerOptions(queues=("default",))),
        lambda: web.ask(lambda broker: broker.read_layout()),
    ):
        with pytest.raises(BrokerUnavailable, match="This is a test"):
            make()
    for command in ("delayq_worker", "delayq_sync", "delayq_status"):
        with pytest.raises(CommandError, match="This is a test"):
            call_command(command)


@pytest.mark.django_db(transaction=True)
def test_what_was_connected_before_the_tests_is_not_used_in_them(held, ordinary):
    teardown_test_environment()
    try:
        tasks.add.enqueue(1)
        web.ask(lambda broker: broker.read_layout())
        before = held()
    finally:
        setup_test_environment(debug=False)
    assert before
    result = tasks.add.enqueue(2)
    with pytest.raises(BrokerUnavailable, match="This is a test"):
        web.ask(lambda broker: broker.read_layout())
    assert held() == before
    assert result.args == [2]


def test_a_save_notes_its_next_point_as_ever(ordinary):
    Schedule.objects.create(name="s", task="tests.app.tasks.add", args=[1], kind="every", every=HOUR)
    assert Schedule.objects.get().state.next_due_at is not None


def test_jobs_are_rows_as_ever_and_a_runner_runs_them(ordinary):
    backend = task_backends["default"]
    done, cancelled, later = tasks.add.enqueue(1), tasks.add.enqueue(2), tasks.add.using(run_after=HOUR).enqueue(3)
    once = retried(tasks.add, unique_key="one")
    assert once.enqueue(4).id == once.enqueue(5).id
    assert backend.cancel(cancelled.id)
    assert backend.reschedule(later.id, 2 * HOUR)
    assert Run.objects.count() == 4
    with Runner() as runner:
        runner.run_due()
        assert [job.is_finished for job in runner.enqueued] == [True, True, False, True]
        assert backend.get_result(done.id).return_value == 2
        runner.run_due(3 * HOUR)
        assert backend.get_result(later.id).return_value == 4
