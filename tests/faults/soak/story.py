"""What is known of the slowest point, and of one that is missing or doubled: the ledger around it, the edits, the
faults. For people.
"""

from datetime import UTC, datetime, timedelta

from django_delayq.models import Run
from django_delayq.recurrence import from_ms
from tests.faults.harness.oracle import History, Verdict

from .arena import Arena

AROUND = timedelta(seconds=12)
MOST_STORIES = 4


def stories(arena: Arena, verdict: Verdict) -> list[str]:
    """Return lines that tell the first few of them."""
    wrong = [*verdict.doubled, *verdict.extra, *verdict.false, *verdict.missing]
    found: list[str] = []
    told: set[str] = set()
    for name, point, known in wrong:
        if name not in told and len(told) < MOST_STORIES:
            told.add(name)
            found.append(f"-- {name} due {point:%X.%f}: {known}")
            for history in arena.histories:
                if history.name == name:
                    found += _story(arena, history, point)
    return found


def slowest(arena: Arena) -> list[str]:
    """Return lines that tell of the point that waited longest for its claim."""
    found: list[str] = []
    names = {history.pk: history for history in arena.histories}
    rows = Run.objects.filter(origin="due", status__in=["succeeded", "failed"], claimed_at__isnull=False)
    row = max(rows.iterator(), key=lambda run: run.latency or timedelta(0), default=None)
    if row is not None and row.latency is not None and row.schedule_id in names:
        found.append(f"-- the slowest: {row.schedule_name} due {row.due_at:%X.%f}, claimed {row.latency} later")
        found += _story(arena, names[row.schedule_id], row.due_at, after=row.latency)
    return found


def _story(arena: Arena, history: History, point: datetime, after: timedelta = timedelta(0)) -> list[str]:
    begin, end = point - AROUND, point + after + AROUND
    lines = [(moment, f"edit   {what}") for moment, what in history.diary if begin <= moment <= end]
    for event in arena.events:
        began, ended = (datetime.fromtimestamp(moment, UTC) for moment in (event.began, event.ended))
        if event.kind != "edit" and began <= end and ended >= begin:
            lines.append((began, f"fault  {event.kind} until {ended:%X.%f}"))
    for row in Run.objects.filter(schedule_id=history.pk, due_at__gte=begin, due_at__lte=end):
        until = f" to {row.last_due_at:%X.%f}" if row.last_due_at else ""
        claimed = f", claimed {row.claimed_at:%X.%f}" if row.claimed_at else ""
        text = f"{row.origin} {row.status} {row.reason} attempt {row.attempt} reclaims {row.reclaims} in {row.queue}"
        text += f" written {row.created_at:%X.%f} of {from_ms(row.generation):%X.%f}"
        lines.append((row.due_at, f"row    {text}{until}{claimed} by {row.worker}"))
    return [f"   {moment:%X.%f} {text}" for moment, text in sorted(lines)]
