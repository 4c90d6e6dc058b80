"""What the tests of jobs in the admin share: jobs in every state, made by the real scripts."""

import itertools
import json
from datetime import timedelta

from django_delayq import mirror
from django_delayq.backend.sending import shared
from django_delayq.broker import JobBroker, JobSettlement
from django_delayq.compat import task_backends
from django_delayq.fields import utcnow
from django_delayq.jobs import State, decode, encode, encode_state, new_members, parse_id
from django_delayq.models import Job
from django_delayq.timing import from_ms, to_ms
from tests.app import tasks

JOBS = "/admin/django_delayq/redisjob/"
LATER = timedelta(hours=1)
LEASE_MS = 30_000
_requests = itertools.count(1)


def build(broker):
    """Take the prefix and call its shards built, as a worker does at its start."""
    shared().forget()
    mirror.check_layout(broker)
    mirror.full_sweep(broker)


def waiting(n=0, after=LATER, queue="default", **options):
    return tasks.add.using(run_after=after, queue_name=queue, **options).enqueue(n).id


def ready(n=0, queue="default", **options):
    return tasks.add.using(queue_name=queue, **options).enqueue(n).id


def where(broker, wanted):
    queue, member = parse_id(wanted)
    jobs = JobBroker(broker)
    return jobs, jobs.shard_of(member, queue), member


def claim(broker, wanted, *, lease_ms=LEASE_MS):
    """Let the broker's worker claim what is ready in a job's shard; return the holder. The job must be among it."""
    jobs, place, member = where(broker, wanted)
    found = jobs.claim(place, limit=1000, lease_ms=lease_ms, request=next(_requests))
    assert member in [entry.member for entry in found.entries]
    return found.holder


def dead(broker, task=tasks.add, *args, error="Traceback\nRuntimeError: no luck", attempts=1, **kwargs):
    """Enqueue a job, claim it and let it die; return its id."""
    wanted = task.enqueue(*args, **kwargs).id
    holder = claim(broker, wanted)
    kill(broker, wanted, holder, error, attempts)
    return wanted


def kill(broker, wanted, holder, error="RuntimeError: no luck", attempts=1):
    jobs, place, member = where(broker, wanted)
    line, _, _ = decode(place.queue, member, jobs.view(place, member).payload)
    now = broker.now_ms()
    state = State("FAILED", now, now, now, [("builtins.RuntimeError", error)] * attempts, ["w-1"] * attempts)
    text = encode(place.queue, member, line, state)
    settled = jobs.settle(place, [JobSettlement(member, holder, "dead", 0, text)], dead_ms=10**9, dead_most=10**6)
    assert settled.replies == [1]
    at = broker.now_ms()
    while broker.now_ms() == at:
        pass  # no two die in one millisecond: these have no order


def dead_row(task="tests.app.tasks.add", *args, error="Traceback\nRuntimeError: no luck", died_ms=0, **values):
    """Insert the row of a durable job that has died, as a worker leaves it; return it."""
    kwargs = values.pop("kwargs", {})
    when = from_ms(died_ms or to_ms(utcnow()))
    call = {"task": task, "args": args, "kwargs": kwargs, "backend": "durable", "enqueued": 1, "durable": True}
    state = State("FAILED", 1, 1, to_ms(when), [("builtins.RuntimeError", error)], ["w-1"])
    row = Job(
        member=new_members(1)[0], queue="default", backend="durable", task=task, status="FAILED", attempt=1,
        mirrored=True, finished_at=when, died_at=when, expires_at=utcnow() + timedelta(days=1), call=json.dumps(call),
        state=encode_state(state),
    )  # fmt: skip
    for name, value in values.items():
        setattr(row, name, value)
    row.save()
    return row


def forge(broker, wanted, text="forged\n{}"):
    """Overwrite a job's text as somebody who can write to Redis."""
    _, place, member = where(broker, wanted)
    broker.client.hset(f"{{{broker.config.prefix}:{place}}}:payload", member, text)


def counts(broker):
    found = JobBroker(broker).counts(broker.shards())
    return tuple(sum(values) for values in zip(*found, strict=True))


def status_of(wanted):
    return task_backends["default"].get_result(wanted).status
