"""What several tests need: moving a schedule into the past, running what is due."""

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management import call_command
from django.db import transaction

from django_delayq import sync
from django_delayq.index import Broker
from django_delayq.index.broker import UPKEEP_MS
from django_delayq.models import Schedule
from django_delayq.recurrence import Recurrence, from_ms, to_ms
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions


def _daily_cron(minutes_ago: int) -> str:
    """Return a daily recurrence with a point so long ago: until its next one no run of the tests lasts."""
    point = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return f"{point.minute} {point.hour} * * *"


DAY = timedelta(days=1)
DAILY_CRON = _daily_cron(10)
#: Beside that one an edit, whose points are others.
OTHER_DAILY_CRON = _daily_cron(3)
#: Whose point is half a year away, whatever the day: at New Year the first of January would be due.
YEARLY_CRON = f"0 0 1 {(datetime.now(UTC).month + 5) % 12 + 1} *"

#: What DELAYQ["COMMANDS"] is in tests of commands, in all of them: the form's choice is made at the first import.
COMMANDS = ["tell", "clearsessions", "nowhere"]


def hold_upkeep(broker: Broker) -> None:
    """Let another worker, named "another", hold the upkeep lease."""
    broker.client.set(f"{broker.config.prefix}:upkeep", "another", px=UPKEEP_MS)


def make_due(broker: Broker, schedule: Schedule, ago: timedelta | None = None) -> datetime:
    """Pretend that the schedule was made long ago, so that a point of it is due now; return that point."""
    now = from_ms(broker.read_now_ms())
    schedule.refresh_from_db()
    since = now - (ago or timedelta(0))
    if schedule.kind == "every":
        before = since - schedule.every
        earlier = from_ms(to_ms(before + schedule.every))
    else:
        earlier = _newest(schedule.recurrence, since)
        before = earlier - timedelta(seconds=1)
    with transaction.atomic():  # a worker that is at work sees both or none
        Schedule._base_manager.filter(pk=schedule.pk).update(created_at=before)
        Schedule.objects.filter(pk=schedule.pk).update(effective_from=before, generation=schedule.generation + 1)
    sync.check_layout(broker)
    for place in broker.list_shards():
        broker.swap_epochs([place], None, "test")
    broker.remove(broker.get_shard(f"s{schedule.pk}", schedule.queue), [(f"s{schedule.pk}", 10**15, "")])
    sync.sweep_fully(broker)
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


def count_keys(broker: Broker) -> int:
    """Count the keys under the prefix."""
    return len(broker.find_keys())


def claims_of(workers: Sequence[Worker]) -> int:
    """Count the claims that these have sent, without the repeated ones."""
    return sum(count for worker in workers for count in worker.claims._request.values())


def said(*words: str, **options: Any) -> str:
    """Return what a management command writes."""
    out = io.StringIO()
    call_command(*words, stdout=out, **options)
    return out.getvalue()
