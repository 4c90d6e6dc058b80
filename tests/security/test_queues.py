"""F37: whoever can write to Redis chooses neither the queue nor the prefix whose workers execute something.

`mail` is the queue of the privileged workers here; everything belongs to `default`.
"""

import os
from typing import NamedTuple

import pytest
from django.conf import settings
from django.test import override_settings
from django_delayq.backend.sending import shared
from django_delayq.jobs.signing import sign
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from django_delayq import mirror, orders
from django_delayq.backend import operating
from django_delayq.broker import Broker, Shard, keys
from django_delayq.broker.web import forget_broker
from django_delayq.compat import TaskResultDoesNotExist
from django_delayq.jobs import bare, parse_id, result_id
from django_delayq.models import Job, Run, Schedule
from tests.app import tasks
from tests.integration.mirroring import schedule
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

#: `DELAYQ_FUZZ_EXAMPLES=1000` searches for longer; each takes some tenths of a second.
EXAMPLES = int(os.environ.get("DELAYQ_FUZZ_EXAMPLES", "8"))
KINDS = ("schedule", "run", "plain", "durable")
JOBS = ("plain", "durable")
ZSETS = ("due", "jobs", "ready", "dead")
HASHES = ("point", "gen", "attempts", "payload", "priority", "unique")
OTHER_PREFIX = "the other"


class Move(NamedTuple):
    """Puts a member somewhere else, due at once. `part`: where a job is put; `bare`: signed for no queue."""

    kind: str
    target: str = "mail:0"
    part: str = "ready"
    copy: bool = True
    bare: bool = False
    lapsed: bool = False


moves = st.builds(
    Move,
    kind=st.sampled_from(KINDS),
    target=st.sampled_from(["mail:0", "mail:1", "default:0", "default:1", f"mail:0 {OTHER_PREFIX}"]),
    part=st.sampled_from(["jobs", "ready", "dead"]),
    copy=st.booleans(),
    bare=st.booleans(),
    lapsed=st.booleans(),
)


class Members:
    """One member of each kind, due, with an argument that no other has."""

    def __init__(self):
        self.prefix = settings.DELAYQ["PREFIX"]
        self.broker = Broker(timeout_seconds=5)
        for model in (Run, Job, Schedule):
            model._base_manager.all().delete()
        self.broker.purge()
        shared().forget()
        forget_broker()
        row = schedule("chain", task="tests.app.tasks.add", args=[KINDS.index("schedule")])
        make_due(self.broker, row)
        other = schedule("order", task="tests.app.tasks.add", args=[KINDS.index("run")], enabled=False)
        jobs = {
            "plain": tasks.add.enqueue(KINDS.index("plain")),
            "durable": tasks.add.using(backend="durable").enqueue(KINDS.index("durable")),
        }
        self.names = {
            "schedule": f"s{row.pk}",
            "run": f"r{orders.run_now(other).pk}",
            **{kind: parse_id(job.id)[1] for kind, job in jobs.items()},
        }
        tasks.CALLS.clear()

    def parts_of(self, kind):
        """Return the keys of the shard that a member belongs to."""
        return keys.all_keys(self.prefix, self.broker.shard_of(self.names[kind], "default"))

    def sign_for_no_queue(self, kind):
        """Let a job's text be one that does not say its queue."""
        payloads, member = self.parts_of(kind)["payload"], self.names[kind]
        line = bare(self.broker.client.hget(payloads, member).decode().partition("\n")[2])
        self.broker.client.hset(payloads, member, f"{sign(member, line)}\n{line}")

    def move(self, move):
        """Do what somebody can who may write to Redis."""
        client, member, source = self.broker.client, self.names[move.kind], self.parts_of(move.kind)
        place, _, other = move.target.partition(" ")
        queue, _, shard = place.partition(":")
        target = keys.all_keys(other or self.prefix, Shard(queue, int(shard)))
        if move.bare and move.kind in JOBS and client.hexists(source["payload"], member):
            self.sign_for_no_queue(move.kind)
        values = {part: client.hget(source[part], member) for part in HASHES}
        if not move.copy:
            for part in (*HASHES, *ZSETS):
                (client.zrem if part in ZSETS else client.hdel)(source[part], member)
        for part, value in values.items():
            if value is not None:
                client.hset(target[part], member, value)
        if move.kind in JOBS:
            client.zadd(target[move.part], {member: 1})
            if move.lapsed:
                client.hset(target["held"], member, "-")
        client.zadd(target["due"], {keys.POINTER if move.kind in JOBS else member: 1})

    def play(self, *queues, prefix=None):
        """Let workers of these queues execute what they will, also what was handed back; return its kinds."""
        with configured(PREFIX=prefix or self.prefix):
            worker = Broker(timeout_seconds=5)
            for _ in range(2):
                run_burst(queues=queues)
                for place in worker.shards(queues):
                    parts = keys.all_keys(worker.config.prefix, place)
                    for member in worker.client.zrange(parts["jobs"], 0, -1):
                        worker.client.zadd(parts["jobs"], {member: 1})
                        worker.client.zadd(parts["due"], {keys.POINTER: 1})
        found = [KINDS[number] for number, _ in tasks.CALLS]
        tasks.CALLS.clear()
        return found


def configured(**options):
    """Let DELAYQ have these options meanwhile."""
    return override_settings(DELAYQ={**settings.DELAYQ, **options})


@pytest.fixture(autouse=True)
def sharded(prefix):
    """Two shards a queue, and another prefix of the same project, which is emptied afterwards."""
    with configured(SHARDS=2, PREFIX=f"{prefix}-other"):
        other = Broker(timeout_seconds=5)
        with configured(PREFIX=prefix):
            yield
        other.purge()
        shared().forget()


def played(damage):
    """Make members, move them, and return (them, what the workers of `mail` and of the other prefix executed)."""
    members = Members()
    other = f"{members.prefix}-other"
    for move in damage:
        members.move(move._replace(target=move.target.replace(OTHER_PREFIX, other)))
    ran = members.play("mail")
    if any(OTHER_PREFIX in move.target for move in damage):
        ran += members.play("mail", prefix=other)
    return members, ran


@pytest.mark.parametrize("how", [{"part": "ready"}, {"part": "jobs"}, {"lapsed": True}, {"copy": False}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_f37_what_was_put_into_another_queue_is_not_executed_there(kind, how):
    members, ran = played([Move(kind, f"mail:{n}", **how) for n in range(2)])
    assert ran == []
    mirror.sweep_now(members.broker)
    taken = {kind} if kind == "plain" and not how.get("copy", True) else set()
    assert sorted(members.play("default", "mail")) == sorted(set(KINDS) - taken), "where it belongs, once"


@examples(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=(
    Phase.explicit, Phase.reuse, Phase.generate,
))  # fmt: skip
@example(damage=[Move("durable", bare=True), Move("durable", f"mail:0 {OTHER_PREFIX}")])
@example(damage=[Move("plain", bare=True)])
@example(damage=[Move("run", "mail:1", copy=False), Move("run", "default:0"), Move("run", "default:1")])
@given(damage=st.lists(moves, min_size=1, max_size=6))
def test_f37_nothing_is_executed_in_another_queue_or_prefix_and_all_that_has_a_row_is_executed_once(damage):
    healed = []
    members, ran = played(damage)
    for _ in range(2):  # a durable job that is not signed is dropped at first
        mirror.sweep_now(members.broker)
        healed += members.play("default", "mail")
    assert ran == []
    for kind in ("schedule", "run", "durable"):
        assert healed.count(kind) == 1, kind
    if all(move.copy and not move.bare and move.target.startswith("mail") for move in damage):
        assert healed.count("plain") == 1


@pytest.mark.parametrize("kind", JOBS)
def test_f37_a_dead_job_of_another_queue_is_not_revived_for_this_one(kind):
    members, ran = played([Move(kind, f"mail:{n}", "dead") for n in range(2)])
    wanted = result_id("mail", members.names[kind])
    assert operating.revive(members.broker, wanted) == operating.Outcome.UNREADABLE
    assert operating.delete(members.broker, wanted) == operating.Outcome.DONE
    assert ran + members.play("mail") == []
    assert kind in members.play("default")


def test_f37_a_job_of_another_prefix_is_not_executed_in_the_same_queue():
    other = f"{settings.DELAYQ['PREFIX']}-other"
    members, _ = played([Move("plain", f"default:{n} {OTHER_PREFIX}") for n in range(2)])
    ran = members.play("default", prefix=other)
    assert "plain" not in ran
    assert "schedule" in ran, "its workers work"


def test_f37_a_result_in_another_queue_is_none():
    members = Members()
    members.play("default")
    name = members.names["plain"]
    place = members.broker.shard_of(name, "default")
    text = members.broker.client.get(keys.result_key(members.prefix, place, name))
    for shard in range(2):
        members.broker.client.set(keys.result_key(members.prefix, Shard("mail", shard), name), text)
    backend = tasks.add.get_backend()
    assert backend.get_result(result_id("default", name)).return_value == KINDS.index("plain") + 1
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result_id("mail", name))
