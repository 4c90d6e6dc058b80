"""Rows of the ledger of past days, for the tests of pruning."""

from datetime import timedelta

import pytest

from django_delayq import ledger
from django_delayq.models import Origin, Run, Schedule, ScheduleState, Status
from django_delayq.recurrence import from_ms, to_ms
from django_delayq.recurrence.point import utcnow
from tests.support import DAY, YEARLY_CRON

NOW = from_ms(to_ms(utcnow()))


@pytest.fixture
def keep(settings):
    """Return a function that sets HISTORY_DAYS."""

    def keep_days(days):
        settings.DELAYQ = {**settings.DELAYQ, "HISTORY_DAYS": days}

    return keep_days


def ago(days):
    return NOW - days * DAY


def schedule(name="s", **values):
    """A schedule that was made two years ago and has decided everything but the last minute."""
    row = Schedule(name=name, **{"task": "tests.app.tasks.noop", "kind": "cron", "cron": YEARLY_CRON, **values})
    row.created_at = row.effective_from = ago(730)
    Schedule._base_manager.bulk_create([row])
    row = Schedule._base_manager.get(name=name)
    ScheduleState.objects.create(schedule=row, last_due_at=NOW - timedelta(minutes=1))
    return row


def run(owner, days, status=Status.SUCCEEDED, origin=Origin.DUE, **values):
    """A row of so many days ago, which ended six hours after it was due: the tests may take as long."""
    due_at = ago(days)
    known = {"schedule_id": owner.pk, "schedule_name": owner.name, "task": owner.task, "queue": owner.queue}
    known |= {"generation": 1, "due_at": due_at, "status": status, "origin": origin, "separate": origin != Origin.DUE}
    known |= {"claimed_at": due_at, "started_at": due_at, "finished_at": due_at + timedelta(hours=6)}
    if Status(status).is_open:
        known["finished_at"] = None
    return Run.objects.create(**{**known, **values})


def history(owner, *days, **values):
    return [run(owner, each, **values) for each in days]


def prune(now=None):
    """Prune everything at once; return how many rows went."""
    return sum(len(ledger.prune(batch.rows).rows) for batch in ledger.find_prunable(now or utcnow()))


def left(owner=None, **lookup):
    """Return of how many days ago the rows are that are left, the oldest first."""
    rows = Run.objects.filter(**lookup) if owner is None else Run.objects.filter(schedule_id=owner.pk, **lookup)
    return [(NOW - due_at) / DAY for due_at in rows.order_by("due_at").values_list("due_at", flat=True)]


def horizon(owner):
    """Return up to how many days ago the history of a schedule is pruned."""
    until = ScheduleState.objects.get(pk=owner.pk).pruned_until
    return None if until is None else (NOW - until) / DAY
