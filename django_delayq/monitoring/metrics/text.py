"""Formats metrics as Prometheus' text. Needs `prometheus_client`."""

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from . import MISSING, is_there

if not is_there():
    raise ImproperlyConfigured(MISSING)

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ...index.counters import BOUNDS_MS, LAG, LAG_SUM, RAN, RAN_SUM, Counts, outcomes

__all__ = ["CONTENT_TYPE_LATEST", "Gauges", "counted", "counter", "text_of"]

KEY = ("kind", "queue", "task")
#: Outcomes that are exposed as 0 once their task has any count, because a rate needs a first value.
ALWAYS = dict.fromkeys(("succeeded", "retried", "failed", "lost"), 0)
_BOUNDS = [*(str(bound / 1000) for bound in BOUNDS_MS), "+Inf"]


class _Ready(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def text_of(families: Iterable[Metric]) -> bytes:
    """Return families of metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Ready(list(families)))
    return generate_latest(registry)


class Gauges(dict[str, GaugeMetricFamily]):
    """Gauges by name, in the order of their first values. Values of None are left out."""

    def put(self, name: str, said: str, value: float | None, **labels: str) -> None:
        """Add a value; `said` is the help text."""
        if value is not None:
            if name not in self:
                self[name] = GaugeMetricFamily(f"delayq_{name}", said, labels=list(labels))
            self[name].add_metric(list(labels.values()), value)


def counter(name: str, said: str, value: float) -> Metric:
    """Return a counter without labels, exposed as `delayq_<name>_total`."""
    return CounterMetricFamily(f"delayq_{name}", said, value=value)


def counted(counts: Counts) -> Iterable[Metric]:
    """Return counts as counters and histograms."""
    labels = (*KEY, "outcome", "reason")
    ended: Any = CounterMetricFamily("delayq_outcomes", "What became of due points and jobs.", labels=labels)
    said = "How long due points and jobs waited for their first attempt after they were due."
    lag = HistogramMetricFamily("delayq_lag_seconds", said, labels=KEY)
    ran = HistogramMetricFamily("delayq_duration_seconds", "How long attempts took.", labels=KEY)
    for key, tally in list(counts.items()):
        now = dict(tally)  # a copy: the loop's thread continues to count
        for name, number in (ALWAYS | outcomes(now)).items():
            outcome, _, reason = name.partition(":")
            ended.add_metric((*key, outcome, reason), number)
        for family, buckets, total in ((lag, LAG, LAG_SUM), (ran, RAN, RAN_SUM)):
            below, sums = 0, []
            for bound, name in zip(_BOUNDS, buckets, strict=True):
                below += now.get(name, 0)
                sums.append((bound, below))
            if below:
                family.add_metric(key, sums, now.get(total, 0) / 1e6)
    return ended, lag, ran
