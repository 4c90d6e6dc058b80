"""Jobs as Redis holds them: enqueued, found, changed. Signs only what it found signed.

Note [A result gives way]
The result of a plain job that died may stand in the database, and where one stands none is written. So it is deleted
before the job is revived, and put back where Redis refuses. Cut off in between, nothing is lost but the row: the job
is dead in Redis, with all that the row told.
"""

from collections.abc import Sequence
from dataclasses import replace

from django.db import transaction

from .. import conf, ledger, mirror
from ..broker import Broker, JobBroker, JobView, Shard, held_by
from ..broker.job_pages import PATIENCE_MS
from ..fields import utcnow
from ..jobs import Options, decode, encode, note_cancelled, parse_id, revived
from ..timing import to_ms
from .sending import shared
from .store import Enqueued, JobState, Outcome, SeenJob, tell_enqueued, with_text, without_standing

_REPLIES = {
    "OK": Outcome.DONE,
    "HELD": Outcome.HELD,
    "DEAD": Outcome.DEAD,
    "WAITING": Outcome.NOT_DEAD,
    "TAKEN": Outcome.KEY_TAKEN,
}


class RedisStore:
    """Jobs in Redis, or in memory where Redis is sent nothing. A `Store`."""

    def __init__(self, broker: Broker | None = None, *, options: Options | None = None) -> None:
        """`broker`: is asked instead of this process' sender; `options`: those of an alias."""
        self._given = None if broker is None else JobBroker(broker)
        self._options = options or Options()

    def enqueue(self, items: Sequence[Enqueued], sender: type) -> None:
        """Add jobs in few round trips.

        Raises:
            BrokerUnavailable: Redis does not answer; some may have been added.
        """
        if self._options.enqueue_on_commit:
            transaction.on_commit(lambda: RedisStore().enqueue(items, sender), using=ledger.database())
        elif items:
            standing = shared().send([job for _, job in items])
            members = [job.member for _, (_, job) in items]
            tell_enqueued(without_standing(items, dict(zip(members, standing, strict=True))), sender)

    def find(self, wanted: str) -> SeenJob | None:
        """With a broker of its own it goes by the shards that stand in Redis now.

        Raises:
            ForeignLayout: The prefix belongs to another database.
        """
        parsed = parse_id(wanted)
        if parsed is None:
            return None
        queue, member = parsed
        if self._given is None:
            shard, view = shared().view(queue, member)
        elif queue not in conf.get_config().queues:
            return None
        else:
            shard = self._given.shard_of(member, queue, mirror.standing_shards(self._given.broker))
            view = self._given.view(shard, member)
        return seen_view(shard, member, view)

    def for_result(self, seen: SeenJob) -> SeenJob:
        if seen.state != JobState.WAITING or seen.call is None:
            return seen
        return replace(seen, call=replace(seen.call, run_after=seen.at_ms))

    def cancel(self, seen: SeenJob, keep_ms: int) -> Outcome:
        """What cannot be read leaves no result."""
        text = ""
        if seen.record is not None:
            note_cancelled(seen.record, to_ms(utcnow()))
            text = encode(seen.shard.queue, seen.member, seen.line, seen.record)
        return self._change(seen, "cancel", keep_ms, text)

    def move(self, seen: SeenJob, at_ms: int) -> Outcome:
        return self._change(seen, "move", at_ms)

    def revive(self, seen: SeenJob) -> Outcome:
        if seen.call is None or seen.record is None:
            return Outcome.UNREADABLE
        queue, member, call = seen.shard.queue, seen.member, seen.call
        result = ledger.take_result(queue, member)  # see Note [A result gives way]
        text = encode(queue, member, seen.line, revived(seen.record))
        outcome = self._change(seen, "revive", call.priority, text, call.unique)
        if result is not None and outcome != Outcome.DONE:
            ledger.store_results([result])
        return outcome

    def delete(self, seen: SeenJob) -> Outcome:
        outcome = self._change(seen, "bury")
        if outcome == Outcome.DONE:
            ledger.take_result(seen.shard.queue, seen.member)
        return outcome

    def _change(self, seen: SeenJob, what: str, ms: int = 0, text: str = "", unique: str = "") -> Outcome:
        jobs = self._given or shared().jobs
        reply = jobs.change(seen.shard, seen.member, what, ms, text, unique=unique)
        return _REPLIES.get(reply, Outcome.GONE)


def seen_view(shard: Shard, member: str, view: JobView, turn_us: float | None = None) -> SeenJob | None:
    """Return what these values of Redis say of a job; None where it is gone."""
    text = view.payload or view.result
    if not text and view.waits_until_ms is None and view.died_ms is None and turn_us is None:
        return None
    if view.result:  # beside a payload where it ended between the two reads
        ended = SeenJob(shard, member, JobState.ENDED, None, len(view.result))
        ended = with_text(ended, lambda: decode(shard.queue, member, view.result))
        if ended.record is not None:
            return replace(ended, at_ms=ended.record.finished)
        if not view.payload:
            return None  # there is no such result
    if view.died_ms is not None:
        seen = SeenJob(shard, member, JobState.DEAD, view.died_ms, len(text))
    elif " " in view.holder:
        worker, claimed = held_by(view.holder)
        seen = SeenJob(shard, member, JobState.RUNNING, claimed, len(text), worker, view.waits_until_ms)
    else:
        state = JobState.READY if view.waits_until_ms is None else JobState.WAITING
        seen = SeenJob(shard, member, state, view.waits_until_ms, len(text))
    return with_turn(with_text(seen, lambda: decode(shard.queue, member, text)), turn_us)


def with_turn(seen: SeenJob, turn_us: float | None) -> SeenJob:
    """Return a job with the time since when it is ready, as its turn tells."""
    if seen.state != JobState.READY or turn_us is None:
        return seen
    priority = 0 if seen.call is None else seen.call.priority
    return replace(seen, at_ms=max(0, int(min(turn_us, 2.0**62)) // 1000 + priority * PATIENCE_MS))
