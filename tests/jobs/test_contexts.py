"""What one execution sets, another one of its thread does not find: schedules and jobs alike."""

import contextvars
import decimal

import pytest
from django.core.cache import caches
from django.utils import timezone, translation

from django_delayq.calls import registry
from django_delayq.calls.compat import task, task_backends, task_started
from django_delayq.models import Run, Schedule
from tests.jobs.support import connected, run_burst
from tests.support import DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)

OWN = contextvars.ContextVar("OWN", default="unset")
FOUND = []
CLIENTS = set()


@task
def change_all():
    """Note what is found, and change it all."""
    FOUND.append(surroundings())
    translation.activate("de")
    timezone.activate("Asia/Kolkata")
    OWN.set("set")
    decimal.getcontext().prec = 3
    CLIENTS.update((id(caches["default"]), id(task_backends["default"])))
    assert surroundings() != FOUND[0]


@task
async def achange_all():
    """Do as `change_all`."""
    change_all.call()


@pytest.fixture(autouse=True)
def known(monkeypatch):
    FOUND.clear()
    CLIENTS.clear()
    for made in (change_all, achange_all):
        monkeypatch.setitem(registry.get_tasks(), made.module_path, made)


def surroundings():
    """Return all that an execution finds around it."""
    return translation.get_language(), timezone.get_current_timezone_name(), OWN.get(), decimal.getcontext().prec


@pytest.mark.parametrize("made", [change_all, achange_all])
def test_an_execution_finds_nothing_that_another_one_of_its_thread_has_set(made, broker):
    for number in range(2):
        row = Schedule.objects.create(name=f"s{number}", task=made.module_path, kind="cron", cron=DAILY_CRON)
        make_due(broker, row)
        made.enqueue()
    run_burst(threads=1)
    assert Run.objects.filter(status="succeeded").count() == 4
    assert len(FOUND) == 4
    assert len(set(FOUND)) == 1
    assert FOUND[0][2:4] == ("unset", decimal.DefaultContext.prec)


def test_what_a_receiver_sets_for_an_execution_lasts_for_that_one():
    def number_it(**kwargs):
        OWN.set(OWN.get() + "!")

    with connected(number_it, task_started):
        for _ in range(2):
            change_all.enqueue()
        run_burst(threads=1)
    assert [found[2] for found in FOUND] == ["unset!", "unset!"]


def test_the_executions_of_a_thread_share_their_clients_of_caches_and_their_task_backends():
    for _ in range(3):
        change_all.enqueue()
    run_burst(threads=1)
    assert len(FOUND) == 3
    assert len(CLIENTS) == 2
