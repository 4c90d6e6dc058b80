"""What Prometheus and probes read: views for the web, a port for workers. Counts nothing itself.

Note [Counters and gauges]
Prometheus takes each fall of a counter for a restart. The sums that all workers share (`counters.py`) may fall: hours
are deleted after 90 days, and a flush of Redis takes the last minutes. So what only grows is told by whoever counted
it: each worker process, at `/metrics` on its port, since its start. How everything stands, Redis and the database
together, is told by gauges: by the web view, and at `/fleet` on each worker's port, where one of them is enough. Among
these are the shared sums of the last hour: they name whatever happened, also what no scrape has seen twice.

Labels are bounded: queues by the settings, tasks by the code (and at `MOST_TASKS`), reasons by the policies. No
schedule and no error is a label.
"""

from importlib.util import find_spec

MISSING = 'The metrics need the package prometheus_client: pip install "django-delayq[metrics]"'


def is_there() -> bool:
    """Say whether `prometheus_client` can be imported."""
    return find_spec("prometheus_client") is not None
