"""Side channels that fail, in a process that was started with DELAYQ_TEST_BROKEN: `raises`, `blocks` or `gone`.

Imported by models.py, so that it works in workers, and in the processes of their commands and isolated tasks.
"""

import logging
import os
import random
import time
from collections.abc import Iterable
from typing import Any

from django_delayq import signals
from django_delayq.calls.compat import task_enqueued, task_finished, task_started

HOW = os.environ.get("DELAYQ_TEST_BROKEN", "")
#: For so long each of them blocks, before a task is called and after it, and how often it does so after it. By default
#: longer than the leases and the timeouts of the test.
BEFORE, AFTER, SHARE = map(float, os.environ.get("DELAYQ_TEST_BROKEN_SECONDS", "3 3 1").split())
#: Where the log of the worker is written that cannot print it.
LOG = os.environ.get("DELAYQ_TEST_BROKEN_LOG", "")
STARTS = signals.run_started, task_started
SIGNALS = (
    signals.run_finished, signals.run_skipped, signals.lease_lost, signals.schedule_broken, signals.alert_changed,
    task_enqueued, task_finished,
)  # fmt: skip
#: The logger of the tasks, and one of ours.
LOGGERS = ("shop", "django_delayq.sync")


def fail(*args: object, **kwargs: object) -> None:
    """Fail as this process is to, where the task has ended."""
    if HOW != "blocks":
        fail_before()
    elif random.random() < SHARE:
        time.sleep(AFTER)


def fail_before(*args: object, **kwargs: object) -> None:
    """Fail as this process is to, where the task has not begun."""
    if HOW == "blocks":
        time.sleep(BEFORE)
    elif HOW == "raises":
        raise RuntimeError("a side channel that raises")
    else:
        raise ConnectionError("a side channel that is gone")


class Handler(logging.Handler):
    """Of a log server that fails."""

    def emit(self, record: logging.LogRecord) -> None:
        fail()


class Collector:
    """Metrics of a project."""

    def describe(self) -> Iterable[Any]:
        return []

    def collect(self) -> Iterable[Any]:
        fail()
        return []


def install() -> None:
    """Have all of them fail here."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from prometheus_client import REGISTRY

    class Processor(SpanProcessor):
        def on_start(self, *args: object, **kwargs: object) -> None:
            fail_before()

        def on_end(self, *args: object, **kwargs: object) -> None:
            fail()

    provider = TracerProvider()
    provider.add_span_processor(Processor())
    trace.set_tracer_provider(provider)
    REGISTRY.register(Collector())
    if LOG:
        own = logging.getLogger("django_delayq.worker")
        own.setLevel(logging.INFO)
        own.addHandler(logging.FileHandler(LOG))
    for name in LOGGERS:
        logging.getLogger(name).addHandler(Handler())
    for signal in STARTS:
        signal.connect(fail_before, weak=False, dispatch_uid="broken")
    for signal in SIGNALS:
        signal.connect(fail, weak=False, dispatch_uid="broken")


if HOW:
    install()
