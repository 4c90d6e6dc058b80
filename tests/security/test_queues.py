"""F37: whoever can write to Redis does not choose the queue whose workers execute something.

`mail` is the queue of the privileged workers here; everything belongs to `default`.
"""

import os
from typing import NamedTuple

import pytest
from django.conf import settings
from django.test import override_settings
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from django_delayq import actions, sync
from django_delayq.calls import parse_id
from django_delayq.index import Broker, Shard, keys
from django_delayq.models import Run, Schedule
from tests.app import tasks
from tests.integration.mirroring import schedule
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

#: `DELAYQ_FUZZ_EXAMPLES=1000` searches for longer; each takes some tenths of a second.
EXAMPLES = int(os.environ.get("DELAYQ_FUZZ_EXAMPLES", "8"))
KINDS = ("schedule", "run", "job")
ZSETS = ("due", "ready", "jobs", "jobs-ready")
HASHES = ("point", "gen", "attempts", "priority", "lease")


class Move(NamedTuple):
    """Puts a member into a part of another shard, due at once."""

    kind: str
    target: str = "mail:0"
    part: str = "due"
    copy: bool = True
    lapsed: bool = False


moves = st.builds(
    Move,
    kind=st.sampled_from(KINDS),
    target=st.sampled_from(["mail:0", "mail:1", "default:0", "default:1"]),
    part=st.sampled_from(ZSETS),
    copy=st.booleans(),
    lapsed=st.booleans(),
)


class Members:
    """One member of each kind, due, with an argument that no other has."""

    def __init__(self):
        self.prefix = settings.DELAYQ["PREFIX"]
        self.broker = Broker(timeout_seconds=5)
        for model in (Run, Schedule):
            model._base_manager.all().delete()
        self.broker.purge()
        row = schedule("chain", task="tests.app.tasks.add", args=[KINDS.index("schedule")])
        make_due(self.broker, row)
        other = schedule("order", task="tests.app.tasks.add", args=[KINDS.index("run")], enabled=False)
        self.names = {
            "schedule": f"s{row.pk}",
            "run": f"r{actions.run_now(other).pk}",
            "job": f"j{parse_id(tasks.add.enqueue(KINDS.index('job')).id)[0]}",
        }
        tasks.CALLS.clear()

    def parts_of(self, kind):
        """Return the keys of the shard that a member belongs to."""
        return keys.build_keys(self.prefix, self.broker.get_shard(self.names[kind], "default"))

    def move(self, move):
        """Do what somebody can who may write to Redis."""
        client, member, source = self.broker.client, self.names[move.kind], self.parts_of(move.kind)
        queue, _, shard = move.target.partition(":")
        target = keys.build_keys(self.prefix, Shard(queue, int(shard)))
        values = {part: client.hget(source[part], member) for part in HASHES}
        if not move.copy:
            for part in (*HASHES, *ZSETS):
                (client.zrem if part in ZSETS else client.hdel)(source[part], member)
        for part, value in values.items():
            if value is not None:
                client.hset(target[part], member, value)
        client.zadd(target[move.part], {member: 1})
        if move.lapsed:
            client.hset(target["lease"], member, "1.e another")

    def play(self, *queues):
        """Let workers of these queues execute what they will, also what was handed back; return its kinds."""
        for _ in range(2):
            run_burst(queues=queues)
            for place in self.broker.list_shards(queues):
                name = keys.build_keys(self.prefix, place)["jobs"]
                for member in self.broker.client.zrange(name, 0, -1):
                    self.broker.client.zadd(name, {member: 1})
        found = [KINDS[number] for number, _ in tasks.CALLS]
        tasks.CALLS.clear()
        return found


@pytest.fixture(autouse=True)
def sharded(prefix):
    """Two shards a queue."""
    with override_settings(DELAYQ={**settings.DELAYQ, "SHARDS": 2}):
        yield


def played(damage):
    """Make members, move them, and return (them, what the workers of `mail` executed)."""
    members = Members()
    for move in damage:
        members.move(move)
    return members, members.play("mail")


@pytest.mark.parametrize("how", [{"part": part} for part in ZSETS] + [{"lapsed": True}, {"copy": False}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_f37_what_was_put_into_another_queue_is_not_executed_there(kind, how):
    members, ran = played([Move(kind, f"mail:{n}", **how) for n in range(2)])
    assert ran == []
    sync.sweep_now(members.broker)
    assert sorted(members.play("default", "mail")) == sorted(KINDS), "where it belongs, once"


@examples(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=(
    Phase.explicit, Phase.reuse, Phase.generate,
))  # fmt: skip
@example(damage=[Move("run", "mail:1", copy=False), Move("run", "default:0"), Move("run", "default:1")])
@given(damage=st.lists(moves, min_size=1, max_size=6))
def test_f37_nothing_is_executed_in_another_queue_and_all_is_executed_once_where_it_belongs(damage):
    members, ran = played(damage)
    sync.sweep_now(members.broker)
    assert ran == []
    assert sorted(members.play("default", "mail")) == sorted(KINDS)
