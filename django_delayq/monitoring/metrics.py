"""Metrics in Prometheus' format, for web views and for a port of each worker. Needs `prometheus_client`.

Note [A worker exposes only its own counters]
Prometheus takes a falling counter for a restart, and the sums that all workers share (`index/counters.py`) may fall. So
counters come from the process that counts: each worker exposes its own since its start, at `/metrics` on its port.
Gauges have the state of Redis and the database, with the shared sums of the last hour: in the web view, and at `/fleet`
on each worker's port. Labels are bounded: queues, tasks (at most `MOST_TASKS`), reasons; no schedules, no errors.
"""

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ImproperlyConfigured

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise ImproperlyConfigured(
        'The metrics need the package prometheus_client: pip install "django-delayq[metrics]"'
    ) from None

from .. import conf
from ..index import counters
from ..index.counters import Counts
from .minutes import sum_rows
from .observing import take_snapshot
from .redis_side import RedisView

__all__ = ["CONTENT_TYPE_LATEST", "CounterMetricFamily", "Gauges", "collect_counts", "format_families", "render_gauges"]

KEY = ("kind", "queue", "task")
SHARES = (0.5, 0.95, 0.99)
#: Outcomes that are exposed as 0 once their task has any count, because a rate needs a first value.
ALWAYS = dict.fromkeys(("succeeded", "retried", "failed", "lost"), 0)
_BOUNDS = [*(str(bound / 1000) for bound in counters.BOUNDS_MS), "+Inf"]


class _Ready(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def format_families(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Ready(list(families)))
    return generate_latest(registry)


class Gauges(dict[str, GaugeMetricFamily]):
    """Gauges by name, in the order of their first values. Values of None are left out."""

    def put(self, name: str, help_text: str, value: float | None, **labels: str) -> None:
        if value is not None:
            if name not in self:
                self[name] = GaugeMetricFamily(f"delayq_{name}", help_text, labels=list(labels))
            self[name].add_metric(list(labels.values()), value)


def collect_counts(counts: Counts) -> Iterable[Metric]:
    labels = (*KEY, "outcome", "reason")
    ended: Any = CounterMetricFamily("delayq_outcomes", "Outcomes of due points and jobs.", labels=labels)
    text = "How long due points and jobs waited for their first attempt after they were due."
    latency = HistogramMetricFamily("delayq_latency_seconds", text, labels=KEY)
    ran = HistogramMetricFamily("delayq_duration_seconds", "How long attempts took.", labels=KEY)
    for key, tally in list(counts.items()):
        now = dict(tally)  # a copy: the loop's thread continues to count
        for name, number in (ALWAYS | counters.select_outcomes(now)).items():
            outcome, _, reason = name.partition(":")
            ended.add_metric((*key, outcome, reason), number)
        for family, buckets, total in (
            (latency, counters.LATENCY, counters.LATENCY_SUM),
            (ran, counters.RAN, counters.RAN_SUM),
        ):
            below, sums = 0, []
            for bound, name in zip(_BOUNDS, buckets, strict=True):
                below += now.get(name, 0)
                sums.append((bound, below))
            if below:
                family.add_metric(key, sums, now.get(total, 0) / 1e6)
    return ended, latency, ran


def render_gauges() -> bytes:
    """Return the gauges as text, without those of a service that does not answer. Has the limits of a web request."""
    gauges, snapshot = Gauges(), take_snapshot()
    for service, answers in (
        ("redis", snapshot.redis is not None),
        ("database", "database_unreachable" not in snapshot.blind),
    ):
        gauges.put("up", "Whether this service answers.", answers, service=service)
    if snapshot.redis is not None:
        _put_queues(gauges, snapshot.redis)
    if snapshot.comparison is not None and snapshot.comparison.differences is not None:
        text = "How far Redis differs from the database, in entries."
        gauges.put("index_differences", text, snapshot.comparison.differences.total)
    if snapshot.failed_jobs is not None:
        for queue in conf.get_config().queues:
            number = snapshot.failed_jobs.get(queue, 0)
            gauges.put("failed_jobs", "Failed jobs whose rows are kept.", number, queue=queue)
    if snapshot.load is not None:
        gauges.put("overloaded", "1 if more points come due than the workers execute.", snapshot.load.overloaded)
        text = "Due points of the last 5 minutes that were skipped because they came too late."
        gauges.put("recently_missed", text, snapshot.load.missed)
    for code in sorted({problem.code for problem in snapshot.problems if problem.is_wrong}):
        gauges.put("problem", "1 for each problem that delayq_status reports, by its code.", 1, code=code)
    _put_hour(gauges, sum_rows(snapshot.rows or ()))
    return format_families(gauges.values())


def _put_queues(gauges: Gauges, redis: RedisView) -> None:
    gauges.put("workers", "Workers with a recent heartbeat.", len(redis.live))
    for each in redis.queues:
        queue = each.queue
        for kind, members, due in (
            ("points", each.members - each.jobs, each.due - each.jobs_due), ("jobs", each.jobs, each.jobs_due),
        ):  # fmt: skip
            gauges.put("queue_depth", "Due entries that wait for a worker.", due, kind=kind, queue=queue)
            text = "Entries that wait for their time, for another attempt, or for the end of a lease."
            gauges.put("queue_scheduled", text, members - due, kind=kind, queue=queue)
        text = "Seconds that the oldest due entry has waited for a worker."
        gauges.put("queue_oldest_seconds", text, each.oldest_due, queue=queue)
        gauges.put("queue_leases", "Entries under a lease of a worker.", each.leased, queue=queue)
        serving = sum(queue in worker.queues for worker in redis.live)
        gauges.put("queue_workers", "Live workers that serve this queue.", serving, queue=queue)
        missing = sum(shard.epoch != "built" for shard in redis.shards if shard.queue == queue)
        gauges.put("shards_not_built", "Shards whose index was flushed and is not rebuilt yet.", missing, queue=queue)


def _put_hour(gauges: Gauges, counts: Counts) -> None:
    for (kind, queue, task), tally in sorted(counts.items()):
        for name, number in counters.select_outcomes(tally).items():
            outcome, _, reason = name.partition(":")
            labels = {"kind": kind, "queue": queue, "task": task, "outcome": outcome, "reason": reason}
            gauges.put("last_hour_outcomes", "Outcomes of due points and jobs in the last hour.", number, **labels)
    for (queue, kind), tally in sorted(counters.sum_by_queue(counts).items()):
        for share in SHARES:
            labels = {"kind": kind, "queue": queue, "quantile": str(share)}
            text = "Maximum wait of this share of due points and jobs in the last hour, rounded up to a bucket."
            gauges.put(
                "last_hour_latency_seconds", text, counters.compute_percentile(tally, counters.LATENCY, share), **labels
            )
            text = "Maximum duration of this share of attempts in the last hour, rounded up to a bucket."
            gauges.put(
                "last_hour_duration_seconds", text, counters.compute_percentile(tally, counters.RAN, share), **labels
            )
