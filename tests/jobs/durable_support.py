"""What the tests of durable jobs share."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections

from django_delayq import mirror
from django_delayq.broker import Broker, JobBroker, NewJob
from django_delayq.compat import AnyResult, task_backends
from django_delayq.jobs import encode, parse_id
from django_delayq.models import Job
from tests.acceptance.support import wait_until


def durable(task: Any, **options: Any) -> Any:
    """Return a task of the durable alias."""
    return task.using(backend="durable", **options)


def backend(alias: str = "durable") -> Any:
    """Return the backend of an alias."""
    return task_backends[alias]


def row_of(result: AnyResult) -> Job:
    """Return the row of a result as it stands now."""
    parsed = parse_id(result.id)
    assert parsed is not None
    return Job.objects.get(member=parsed[1])


def rows_of(result: AnyResult) -> Any:
    """Return the row of a result, to be updated."""
    return Job.objects.filter(pk=row_of(result).pk)


def counts(broker: Broker) -> tuple[int, int, int, int]:
    """Return how many jobs wait for a time, wait for their turn, are held, are dead."""
    found = JobBroker(broker).counts(broker.shards())
    return tuple(sum(column) for column in zip(*found, strict=True))  # type: ignore[return-value]


def put(broker: Broker, row: Job, *, wake_ms: int = 0) -> None:
    """Put an entry of this job into Redis, whatever its row says."""
    jobs = JobBroker(broker)
    place = jobs.shard_of(row.member, row.queue)
    epoch = (broker.epochs([place])[0] or "").removeprefix("building:")
    entry = NewJob(row.member, wake_ms, row.priority, "", encode(row.queue, row.member, row.call))
    assert jobs.enqueue_each([(place, [entry])], {place: epoch}, again=False) == [(epoch, [""])]


def claim(broker: Broker, result: AnyResult, *, lease_ms: int = 30_000) -> Any:
    """Claim what is due as another worker would, and keep it."""
    row = row_of(result)
    jobs = JobBroker(broker)
    claimed = jobs.claim(jobs.shard_of(row.member, row.queue), limit=10, lease_ms=lease_ms, request=1)
    assert [entry.member for entry in claimed.entries] == [row.member]
    return claimed


def view(broker: Broker, result: AnyResult) -> Any:
    """Return what Redis holds of a job."""
    row = row_of(result)
    jobs = JobBroker(broker)
    return jobs.view(jobs.shard_of(row.member, row.queue), row.member)


def built(broker: Broker) -> None:
    """Take the prefix, and call every shard built."""
    mirror.check_layout(broker)
    mirror.full_sweep(broker)


def started(path: Path) -> int:
    """Return how many executions of `tasks.note` have begun."""
    return path.read_text().count("start") if path.exists() else 0


@contextmanager
def in_thread(function: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run this in a thread with a connection of its own; raises what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    wait_until(lambda: not thread.is_alive(), 20, "the end of the thread")
    if errors:
        raise errors[0]
