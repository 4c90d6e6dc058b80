"""The state of Redis and the database as gauges. See `metrics`, Note [Counters and gauges].

If a service does not answer, its gauges are left out and `delayq_up` is 0.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

from django.db import Error

from ... import conf, ledger
from ...exceptions import BrokerError
from ...index.counters import LAG, RAN, Counts, by_queue, outcomes, percentile
from ...index.web import ask
from ...recurrence.point import utcnow
from .. import minutes
from ..status import Snapshot, judge
from ..status.database_side import compare, find_unknown
from ..status.late import name_late
from ..status.redis_side import read_redis
from ..status.snapshot import MOST_COUNTED, MOST_READ, MOST_UNKNOWN, RedisView
from .text import Gauges, text_of

Answer = TypeVar("Answer")

HOUR = timedelta(hours=1)
SHARES = (0.5, 0.95, 0.99)


def told_of_all() -> bytes:
    """Return the gauges as text. Costs as much as the admin's *At a glance* and has the limits of a web request."""
    config, gauges = conf.get_config(), Gauges()
    snapshot = Snapshot(alias=config.redis, prefix=config.prefix)
    snapshot.redis = _asked(partial(ask, partial(read_redis, server=True)))
    snapshot.comparison = _asked(partial(ask, partial(compare, most=MOST_COUNTED)))
    snapshot.load = _asked(minutes.read_load)
    snapshot.last_hour = _asked(lambda: minutes.read_counts(utcnow() - HOUR))
    snapshot.held_back = _asked(ledger.held_back)
    snapshot.unknown_tasks = _asked(find_unknown)
    snapshot.late = _asked(partial(name_late, MOST_UNKNOWN))
    for service, answer in (("redis", snapshot.redis), ("database", snapshot.load)):
        gauges.put("up", "Whether this service answers.", answer is not None, service=service)
    if snapshot.redis is not None:
        _put_queues(gauges, snapshot.redis)
    if snapshot.comparison is not None and snapshot.comparison.drift is not None:
        said = "How far Redis differs from the database, in entries."
        gauges.put("drift_entries", said, snapshot.comparison.drift.total)
    _put_failed(gauges)
    if snapshot.load is not None:
        said = "Whether more falls due than the workers can do."
        gauges.put("overloaded", said, snapshot.load.overloaded)
        said = "Due points of the last 5 minutes that were skipped because they came too late."
        gauges.put("recently_missed", said, snapshot.load.missed)
    for code in sorted({problem.code for problem in judge(snapshot)}):
        gauges.put("problem", "1 for each problem that delayq_status names, by its word.", 1, code=code)
    if snapshot.last_hour is not None:
        _put_hour(gauges, snapshot.last_hour)
    return text_of(gauges.values())


def _asked(question: Callable[[], Answer]) -> Answer | None:
    try:
        return question()
    except (BrokerError, Error):
        return None


def _put_queues(gauges: Gauges, redis: RedisView) -> None:
    live = [worker for worker in redis.workers if worker.live]
    gauges.put("workers", "Workers whose heartbeat is young enough.", len(live))
    for each in redis.queues:
        queue = each.queue
        for kind, members, due in (
            ("points", each.members - each.jobs, each.due - each.jobs_due), ("jobs", each.jobs, each.jobs_due),
        ):  # fmt: skip
            gauges.put("queue_depth", "What is due and waits for a worker.", due, kind=kind, queue=queue)
            said = "What waits for its time, for another attempt, or for the end of a lease."
            gauges.put("queue_scheduled", said, members - due, kind=kind, queue=queue)
        said = "For how long the first of what is due has waited for a worker."
        gauges.put("queue_oldest_seconds", said, each.oldest_due, queue=queue)
        gauges.put("queue_leases", "What workers have claimed and not given back.", each.leased, queue=queue)
        serving = sum(queue in worker.queues for worker in live)
        gauges.put("queue_workers", "Live workers that serve this queue.", serving, queue=queue)
        missing = sum(shard.epoch != "built" for shard in redis.shards if shard.queue == queue)
        gauges.put("shards_not_built", "Shards whose index was flushed and is not rebuilt yet.", missing, queue=queue)


def _put_failed(gauges: Gauges) -> None:
    counts = _asked(partial(ledger.count_failed_jobs, MOST_READ))
    for queue in conf.get_config().queues:
        number = None if counts is None else counts[queue]
        gauges.put("failed_jobs", "Jobs that have failed, kept to be looked at.", number, queue=queue)


def _put_hour(gauges: Gauges, counts: Counts) -> None:
    for (kind, queue, task), tally in sorted(counts.items()):
        for name, number in outcomes(tally).items():
            outcome, _, reason = name.partition(":")
            labels = {"kind": kind, "queue": queue, "task": task, "outcome": outcome, "reason": reason}
            gauges.put("last_hour_outcomes", "What became of due points and jobs in the last hour.", number, **labels)
    for (queue, kind), tally in sorted(by_queue(counts).items()):
        for share in SHARES:
            labels = {"kind": kind, "queue": queue, "quantile": str(share)}
            said = "For how long due points and jobs waited in the last hour, up to twice as long as they did."
            gauges.put("last_hour_lag_seconds", said, percentile(tally, LAG, share), **labels)
            said = "How long attempts took in the last hour, up to twice as long as they did."
            gauges.put("last_hour_duration_seconds", said, percentile(tally, RAN, share), **labels)
