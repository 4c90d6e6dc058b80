"""What the tests of jobs share: the names that differ between Django and its backport, and a worker to run jobs."""

import inspect
from contextlib import contextmanager

from django_delayq.backend import DelayQBackend
from django_delayq.broker import Broker, JobBroker, keys
from django_delayq.compat import TaskResultStatus, task, task_enqueued, task_finished, task_started
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
def told(**names):
    """Collect (what, sender, result, status) of each signal while this lasts."""
    heard = []

    def receiver(name):
        def receive(sender, task_result, **kwargs):
            heard.append((name, sender, task_result.id, str(task_result.status)))

        return receive

    receivers = {name: receiver(name) for name in SIGNALS}
    for name, receive in receivers.items():
        SIGNALS[name].connect(receive, weak=False)
    try:
        yield heard
    finally:
        for name, receive in receivers.items():
            SIGNALS[name].disconnect(receive)


class Stored:
    """One job in Redis, read and changed past everything: what somebody can do who may write there."""

    def __init__(self, result):
        self.queue, _, name = result.id.rpartition(".")
        self.member = f"j{name}"
        self.jobs = JobBroker(Broker(timeout_seconds=5, worker="thief"))
        self.client = self.jobs.broker.client
        self.shard = self.jobs.shard_of(self.member, self.queue)
        self.names = keys.all_keys(self.jobs.broker.config.prefix, self.shard)
        self.result_key = keys.result_key(self.jobs.broker.config.prefix, self.shard, self.member)

    @property
    def payload(self):
        """Its text while it has not ended, or is dead."""
        found = self.client.hget(self.names["payload"], self.member)
        return None if found is None else found.decode()

    @payload.setter
    def payload(self, value):
        self.client.hset(self.names["payload"], self.member, value)

    @property
    def result(self):
        """Its text after its end."""
        found = self.client.get(self.result_key)
        return None if found is None else found.decode()

    @result.setter
    def result(self, value):
        self.client.set(self.result_key, value, px=60_000)

    @property
    def wakes_ms(self):
        """When it comes due; None where it is ready."""
        return self.client.zscore(self.names["jobs"], self.member)

    @property
    def dead(self):
        """Whether it is among the dead."""
        return self.client.zscore(self.names["dead"], self.member) is not None

    def make_due(self):
        """Let the time have come for which it waits, as if that had passed."""
        self.client.zadd(self.names["jobs"], {self.member: 1}, xx=True)
        self.client.zadd(self.names["due"], {keys.POINTER: 1})

    def gone(self):
        """Whether nothing at all stands of it."""
        parts = ("payload", "held", "priority", "unique", "reclaims")
        hashes = any(self.client.hexists(self.names[part], self.member) for part in parts)
        zsets = any(self.client.zscore(self.names[part], self.member) is not None for part in ("jobs", "ready", "dead"))
        return not hashes and not zsets and self.result is None


__all__ = [
    "BACKEND",
    "DECORATOR_OPTIONS",
    "LOGGER",
    "SIGNALS",
    "SUCCESSFUL",
    "Stored",
    "run",
    "run_burst",
    "tasks_setting",
    "told",
    "with_options",
]
