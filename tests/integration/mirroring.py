"""What the tests of the mirror share: making schedules, and asking whether Redis agrees."""

from django_delayq.models import Schedule
from django_delayq.timing import to_ms
from tests.support import HOURLY_CRON


def schedule(name="s", **values):
    values = {"task": "tests.app.tasks.noop", "kind": "cron", "cron": HOURLY_CRON, **values}
    return Schedule.objects.create(name=name, **values)


def view(broker, row, queue=None):
    return broker.views([(f"s{row.pk}", queue or row.queue)])[0]


def mirrored(broker, row):
    """Say whether Redis holds exactly what the database wants of a schedule that is not due."""
    row = Schedule.objects.get(pk=row.pk)
    seen = view(broker, row)
    rule_point = row.recurrence.next_after(row.effective_from)
    return (seen.point_ms, seen.generation, seen.leased) == (to_ms(rule_point), row.generation, False)


def absent(broker, row, queue=None):
    return view(broker, row, queue) == type(view(broker, row))(None, None, None, False)


def set_due(broker, row, part, value):
    place = broker.place_of(f"s{row.pk}", row.queue)
    name = f"{{{broker.config.prefix}:{place}}}:{part}"
    if part == "due":
        broker.client.zadd(name, {f"s{row.pk}": value})
    else:
        broker.client.hset(name, f"s{row.pk}", value)
