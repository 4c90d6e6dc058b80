"""What a test sets up once for all histories: the injected clock, the scripts that read it, the wires, the hooks."""

import inspect
import logging
import os
import random
from collections import Counter
from dataclasses import replace
from functools import lru_cache, partialmethod
from hashlib import sha1

from django.db import transaction
from django.test import override_settings

from django_delayq import conf, ledger
from django_delayq.calls import registry
from django_delayq.index import Broker, build_connector, scripts
from django_delayq.sync import missing
from django_delayq.worker import slots
from tests import failpoints

from .clock import Clock, timed
from .wire import Wire

#: Two shards of one queue and one of another; the shortest numbers that leave room for every case.
SETTINGS = {"queues": ("default", "mail"), "shards": {"default": 2, "mail": 1}, "max_reclaims": 2, "batch_size": 5}
TASK, CALLBACK = "tests.app.tasks.noop", "tests.app.tasks.say"
#: The second alias keeps nothing of a job that succeeded, and for so many seconds what failed.
FAILURE_TTL = 45
TASKS = {
    alias: {"BACKEND": "django_delayq.backend.DelayQBackend", "QUEUES": list(SETTINGS["queues"]), "OPTIONS": options}
    for alias, options in (("default", {}), ("brief", {"result_ttl": 0, "failure_ttl": FAILURE_TTL}))
}


class TaskFailed(Exception):
    """What a task raises where the history wants it to fail."""


def _wired(broker, stage, real, **options):
    """Give a new broker a wire of the process that creates it."""
    real(broker, **{**options, "client": Wire(stage.world, stage.world.creating)})


class Stage:
    """The patches of one test. `world` is the history that is being played."""

    def __init__(self, monkeypatch, *, mutate=None):
        """`mutate(name, text)` returns the text of a script, changed or not."""
        self.world = None
        self.config = self.first_config = replace(conf.get_config(), lease_seconds=30, drain_seconds=0, **SETTINGS)
        self.client = build_connector(timeout_seconds=5)()
        self.clock = Clock(monkeypatch)
        self.clock_key = f"simulation-clock-{os.getpid()}"
        self.names = {}
        self._real_load, self._mutate = scripts.load, mutate or (lambda name, text: text)
        monkeypatch.setattr(scripts, "load", lru_cache(self._load))
        for name in scripts.NAMES:
            scripts.load(name)
        monkeypatch.setattr(Broker, "__init__", partialmethod(_wired, self, Broker.__init__))
        monkeypatch.setattr(conf, "get_config", lambda: self.config)
        monkeypatch.setattr(conf, "can_mirror", lambda: self.config.mirror)
        monkeypatch.setattr(failpoints, "reach", lambda name: self.world.seam(name, self.world.acting))
        for name in ("close_old_connections", "tidy_connections"):
            monkeypatch.setattr(slots, name, lambda: None)
        monkeypatch.setattr(os, "urandom", random.randbytes)
        record = self._watched(inspect.unwrap(ledger.record), "recorded")  # within the places, which are put back
        monkeypatch.setattr(ledger, "record", failpoints.around(record, "before_ledger", "after_ledger"))
        monkeypatch.setattr(ledger, "start", self._watched(ledger.start, "started"))
        monkeypatch.setattr(ledger, "undo_start", self._undoing(ledger.undo_start))
        monkeypatch.setattr(ledger, "add_jobs", self._adding(ledger.add_jobs))
        for name, tell in (("cancel_job", "cancelled"), ("move_job", "moved_to"), ("retry_job", "retried")):
            monkeypatch.setattr(ledger, name, self._told_at_commit(getattr(ledger, name), tell))
        monkeypatch.setattr(missing, "_has_gaps", lambda: True)  # keys come late here: see `Callers.commit`
        self._tasks = override_settings(TASKS=TASKS)
        self._tasks.enable()
        monkeypatch.setattr(type(registry.get_task(TASK)), "call", lambda task, *args, **kwargs: self._call())
        self._quiet = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        self.ending = True
        #: What happened how often, over all histories: steps, and what they came to.
        self.seen = Counter()

    def summary(self, seconds):
        """Return a line about all histories so far."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.seen.items()))
        return f"{self.seen['steps'] / seconds:.0f} steps/s; {counts}"

    def close(self):
        """Leave nothing behind on the server and in the logging of other tests."""
        self.client.delete(self.clock_key)
        self.client.connection_pool.disconnect()
        logging.disable(self._quiet)
        self._tasks.disable()

    def _load(self, name):
        text = timed(self._mutate(name, self._real_load(name)[0]), self.clock_key)
        sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.names[sha] = name
        return text, sha

    def _watched(self, real, check):
        def call(outcomes):
            results = real(outcomes)
            getattr(self.world.invariants, check)(outcomes, [result.value for result in results])
            return results

        return call

    def _undoing(self, real):
        def call(outcomes, before):
            real(outcomes, before)
            self.world.invariants.undone(outcomes)

        return call

    def _adding(self, real):
        def call(rows):
            standing = real(rows)
            self.world.added(rows, standing)
            return standing

        return call

    def _told_at_commit(self, real, tell):
        def call(job, *values):
            done = real(job, *values)
            if done:
                told = list(values) if tell == "moved_to" else []
                transaction.on_commit(lambda: getattr(self.world, tell)(job, *told))
            return done

        return call

    def _call(self):
        if not self.ending:
            raise TaskFailed
