"""Metrics in Prometheus' format, for web views and for a port of each worker. Counts nothing itself.

Note [Counters and gauges]
Prometheus takes a falling counter for a restart, and the sums that all workers share (`counters.py`) may fall: hours
are deleted after 90 days, and a flush of Redis deletes the last minutes. So counters come from the process that counts:
each worker exposes its own since its start, at `/metrics` on its port. Gauges have the state of Redis and the database:
in the web view, and at `/fleet` on each worker's port (scrape one of them). They include the shared sums of the last
hour, and with them events between two scrapes.

Labels are bounded: queues by the settings, tasks by the code (at most `MOST_TASKS`), reasons by the policies. Schedules
and errors are not labels.
"""

from importlib.util import find_spec

MISSING = 'The metrics need the package prometheus_client: pip install "django-delayq[metrics]"'


def is_there() -> bool:
    """Return whether `prometheus_client` can be imported."""
    return find_spec("prometheus_client") is not None
