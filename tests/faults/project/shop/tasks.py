"""What the project enqueues and schedules."""

from datetime import timedelta

from django_delayq.calls.compat import task
from django_delayq.calls.decorators import periodic


@task
def charge(order):
    """Charge an order."""
    return f"charged {order}"


@periodic(every=timedelta(hours=1))
@task
def count_stock():
    """Count."""
