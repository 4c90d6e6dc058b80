"""The schedules that a fault meets: points every second, with each policy, with retries, side by side."""

from datetime import timedelta
from typing import Any

from django_delayq.models import Schedule
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import wait_until

from .oracle import History, due_points, histories_of
from .trace import Trace

SECOND = timedelta(seconds=1)


def schedules(
    count: int, trace: Trace, *, seconds: float = 0.0, name: str = "s", first: int = 0, **values: Any
) -> list[History]:
    """Make schedules that leave traces, by default one point a second each; return their histories.

    They are called `name` and a number, from `first` on.
    """
    values = {"kind": "every", "every": SECOND, "task": "tests.faults.tasks.trace", **values}
    arguments = {"path": str(trace.path)} | ({"seconds": seconds} if seconds else {})
    kwargs = {"kwargs": arguments, **values}
    rows = [Schedule(name=f"{name}{number}", **kwargs) for number in range(first, first + count)]
    Schedule.objects.bulk_create(rows)
    return histories_of(Schedule.objects.filter(name__in=[row.name for row in rows]))


def overdue(count: int, trace: Trace, **values: Any) -> list[History]:
    """Do as `schedules`, and return once a point of each is due: whoever starts now finds it at its first claims."""
    histories = schedules(count, trace, created_at=utcnow() - 0.9 * SECOND, **values)
    wait_until(lambda: all(due_points(history, utcnow()) for history in histories), what="points that are due")
    return histories


def soon(seconds: float = 2.0) -> dict[str, Any]:
    """Return what makes a schedule have one point, so many seconds from now."""
    return {"kind": "once", "every": None, "at": utcnow() + timedelta(seconds=seconds)}


def mixture(count: int, trace: Trace) -> list[History]:
    """Make a mixture of all that a schedule can be, about `count` of them, in equal parts."""
    kinds: list[dict[str, Any]] = [
        {},
        {"kind": "cron", "every": None, "cron": "* * * * * *"},
        {"missed": "all"},
        {"missed": "skip"},
        {"overlap": "queue_one", "seconds": 1.5},
        {"overlap": "queue_all", "missed": "all", "seconds": 0.3},
        {"overlap": "allow", "seconds": 1.5, "every": 2 * SECOND},
        {"task": "tests.faults.tasks.fail_first", "max_attempts": 3, "backoff": SECOND, "every": 3 * SECOND},
        {"every_from": "finish"},
        {"jitter": timedelta(milliseconds=500)},
    ]
    histories = []
    for number, kind in enumerate(kinds):
        part = count * (number + 1) // len(kinds) - count * number // len(kinds)
        histories += schedules(part, trace, name=f"{number}-", **kind)
    return histories
