"""What the tests of the status share: a prefix that is well, and the command as a machine and a person read it."""

import io
import json
from contextlib import suppress

import pytest
from django.core.management import call_command

from django_delayq import sync
from django_delayq.index import keys
from django_delayq.monitoring import observing
from django_delayq.monitoring.redis_side import ShardView, WorkerView

SHARD = ShardView("default", 0, 0, 0, 0, None, "built")
ALIVE = WorkerView("w", ("default",), 1.0)
WORKER = {"queues": ["default", "mail"], "started": 1}


def build(broker):
    """Take the prefix and call its shards built, as a worker does at its start."""
    sync.check_layout(broker)
    sync.sweep_fully(broker)


def beat(broker, details=WORKER, ago=0.0):
    text = details if isinstance(details, str) else json.dumps(details)
    broker.write_heartbeat(broker.read_now_ms() - int(ago * 1000), text)


def ask(*options):
    """Return (exit status, the JSON)."""
    out, code = io.StringIO(), 0
    try:
        call_command("delayq_status", "--json", *options, stdout=out)
    except SystemExit as end:
        code = end.code
    return code, json.loads(out.getvalue())


def codes(*options):
    code, found = ask(*options)
    assert code == found["status"]
    assert all(problem["message"] and "\n" not in problem["message"] for problem in found["problems"])
    return code, [problem["code"] for problem in found["problems"]]


def text(*options):
    out = io.StringIO()
    with suppress(SystemExit):
        call_command("delayq_status", *options, stdout=out, no_color=True)
    return out.getvalue()


def key(broker, part, member="s1"):
    return keys.build_keys(broker.config.prefix, broker.get_shard(member, "default"), "test")[part]


@pytest.fixture
def well(broker, monkeypatch):
    """A built prefix with a live worker, which never writes anything while somebody looks."""
    monkeypatch.setattr(observing, "AGAIN_SECONDS", 0.01)
    build(broker)
    beat(broker)
    return broker
