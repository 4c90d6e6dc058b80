"""What several tests need: moving a schedule into the past, running what is due."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django_delayq import mirror
from django_delayq.broker import Broker
from django_delayq.models import Schedule
from django_delayq.timing import Recurrence, from_ms, to_ms
from django_delayq.worker import Worker, WorkerOptions

#: Minutes that tests write out, beside which the two below must be an edit.
_WRITTEN_OUT = {0, 5, 6, 7, 8, 9, 15, 30}


def _hourly_minute(now: int) -> int:
    """Return a minute a while ago, so that no second point falls due in the next 40 minutes of the run."""
    past = [(now - ago) % 60 for ago in range(9, 20)]
    return next(minute for minute in past if not _WRITTEN_OUT & {minute, (minute + 7) % 60})


HOURLY_MINUTE = _hourly_minute(datetime.now(UTC).minute)
HOURLY_CRON = f"{HOURLY_MINUTE} * * * *"
OTHER_HOURLY_CRON = f"{(HOURLY_MINUTE + 7) % 60} * * * *"


def make_due(broker: Broker, schedule: Schedule, ago: timedelta | None = None) -> datetime:
    """Pretend that the schedule was made long ago, so that a point of it is due now; return that point."""
    now = from_ms(broker.now_ms())
    schedule.refresh_from_db()
    since = now - (ago or timedelta(0))
    if schedule.kind == "every":
        before = since - schedule.every
        earlier = from_ms(to_ms(before + schedule.every))
    else:
        earlier = _newest(schedule.recurrence, since)
        before = earlier - timedelta(seconds=1)
    Schedule._base_manager.filter(pk=schedule.pk).update(created_at=before)
    Schedule.objects.filter(pk=schedule.pk).update(effective_from=before, generation=schedule.generation + 1)
    mirror.check_layout(broker)
    for place in broker.places():
        broker.swap_epoch(place, None, "test")
    broker.remove(broker.place_of(f"s{schedule.pk}", schedule.queue), [(f"s{schedule.pk}", 10**15, "")])
    mirror.full_sweep(broker)
    return earlier


def _newest(rule: Recurrence, since: datetime) -> datetime:
    point = rule.next_after(since)
    assert point is not None
    step = (rule.next_after(point) or point + timedelta(days=1)) - point
    earlier = rule.next_after(since - step - timedelta(microseconds=1))
    assert earlier is not None
    return earlier


def run_burst(**options: Any) -> int:
    """Run what is due in this process, as `delayq_worker --burst` does."""
    options = {"queues": ("default", "mail"), "threads": 2, "burst": True, **options}
    return Worker(WorkerOptions(**options)).run()
