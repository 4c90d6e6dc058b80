"""What one worker process has counted since its start, and how busy it is.

See `metrics`, Note [Counters and gauges].
"""

from prometheus_client import REGISTRY

from ..worker.loop import Worker
from .text import Gauges, counted, counter, text_of


def told_by(worker: Worker) -> bytes:
    """Return its metrics as text, with those of `prometheus_client`'s own registry: what tasks count there too."""
    gauges, now = Gauges(), worker.describe()
    gauges.put("worker_threads", "Tasks that this process can run at a time.", now["threads"])
    gauges.put("worker_running", "Tasks that run in this process.", now["running"])
    gauges.put("worker_leases", "Entries that this process has claimed and not given back.", now["held"])
    said = "Rebuilds of a flushed index that this process has brought to an end."
    rebuilds = counter("rebuilds", said, worker.upkeep.rebuilds)
    return text_of([*counted(worker.counting.brought), rebuilds, *gauges.values(), *REGISTRY.collect()])
