"""What the tests of jobs share: the names that differ between Django and its backport, and a worker to run jobs."""

import inspect
import threading
from contextlib import contextmanager

import pytest
from django.db import connections

from django_delayq.backend import DelayQBackend
from django_delayq.calls import DelayQTask, parse_id
from django_delayq.calls.compat import TaskResultStatus, task, task_enqueued, task_finished, task_started
from django_delayq.index import Broker, EntryView, keys
from django_delayq.ledger.chain import format_run_member
from django_delayq.models import Run
from django_delayq.sync import after_commit, check_layout, rebuild
from django_delayq.worker.trip import Trip
from tests.support import run_burst

#: "django.tasks" or, with the backport, "django_tasks".
LOGGER = task.__module__.rpartition(".")[0]
#: Whether `@task` hands options of our own on: Django 6.1, and the backport from 0.10 on.
DECORATOR_OPTIONS = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(task).parameters.values())
BACKEND = f"{DelayQBackend.__module__.rpartition('.')[0]}.{DelayQBackend.__name__}"
SUCCESSFUL = TaskResultStatus.SUCCESSFUL
SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


def with_options(**options):
    """Return a decorator: `@task(**options)`, where that is possible, else the same by `using`."""
    if DECORATOR_OPTIONS:
        return task(**options)
    return lambda function: task(function).using(**options)


def tasks_setting(**aliases):
    """Return TASKS with these aliases beside the default; each is its OPTIONS."""
    made = {"default": {}, **aliases}
    return {
        alias: {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}
        for alias, options in made.items()
    }


def run(result):
    """Run what is due, and return this result as it stands then."""
    run_burst()
    result.refresh()
    return result


@contextmanager
def connected(receive, *signals):
    """Call this at each of these signals while this lasts."""
    for signal in signals:
        signal.connect(receive)
    try:
        yield
    finally:
        for signal in signals:
            signal.disconnect(receive)


@contextmanager
def told():
    """Collect (what, sender, result, status) of each signal while this lasts."""
    heard = []

    def receive(sender, task_result, signal, **kwargs):
        name = next(name for name, known in SIGNALS.items() if known is signal)
        heard.append((name, sender, task_result.id, str(task_result.status)))

    with connected(receive, *SIGNALS.values()):
        yield heard


def retried(made, **options):
    """Return a task with options of ours, also where a Django made it whose decorator does not know our class."""
    made = DelayQTask(
        func=made.func, backend=made.backend, queue_name=made.queue_name, priority=made.priority,
        takes_context=made.takes_context, run_after=made.run_after,
    )  # fmt: skip
    return made.using(**options)


@contextmanager
def unput():
    """Let what is enqueued meanwhile be committed and not put into Redis, as where the process died in between."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(after_commit, "put_runs", lambda broker, runs: 0)
        yield


def in_thread(function):
    """Run this in a thread with a connection of its own; returns the thread and what it returned or raised."""
    found = []

    def work():
        try:
            found.append(function())
        except Exception as error:
            found.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, found


def row(result):
    """Return the row of a job as it stands now."""
    return Run.objects.get(pk=parse_id(result.id)[0])


def rows(result):
    """Return the row of a job, to be updated."""
    return Run.objects.filter(pk=parse_id(result.id)[0])


def died(result, times=1, started=True):
    """Let workers claim this job, begin to execute it, where `started`, and die; so many times."""
    standing = Standing(result)
    trip = Trip(standing.broker)
    check_layout(standing.broker)
    rebuild(standing.broker, standing.broker.list_shards())
    for request in range(1, times + 1):
        standing.make_due()
        _, [held] = trip.claim(standing.shard, 1, request, 10.0**12)
        verdicts = trip.judge([held])
        [held] = verdicts.start or verdicts.suspects
        if started and verdicts.start:
            trip.show([held])
        elif started:
            assert trip.begin([held]).start
    standing.make_due()


class Standing:
    """What Redis holds of one job, read and changed past everything."""

    def __init__(self, result):
        self.row = row(result)
        self.broker = Broker(timeout_seconds=5, worker="thief")
        self.member = format_run_member(self.row)
        self.client, self.shard = self.broker.client, self.broker.get_shard(self.member, self.row.queue)
        self.names = keys.build_keys(self.broker.config.prefix, self.shard)

    @property
    def view(self):
        """Its entry."""
        return self.broker.read_views([(self.member, self.row.queue)])[0]

    def make_due(self):
        """Let the time have come for which it waits, as if that had passed."""
        self.client.zadd(self.names["jobs"], {self.member: 1}, xx=True)

    def gone(self):
        """Whether nothing at all stands of it."""
        return self.view == EntryView(None, None, None, leased=False)
