"""Edits of schedules while everything else goes on; each is told to the oracle."""

from collections.abc import Callable
from datetime import timedelta

from django_delayq.actions import run_now
from django_delayq.models import Schedule
from django_delayq.recurrence.point import utcnow
from tests.faults.harness.load import SECOND, schedules
from tests.faults.harness.oracle import History

from .arena import Arena


def retime(arena: Arena, history: History, row: Schedule) -> None:
    """Another interval or expression."""
    if not history.computed:  # a fixed delay: its points follow from its runs, the oracle follows one definition only
        return
    if arena.chance.random() < 0.5:
        row.kind, row.cron, row.every = "every", "", arena.chance.choice((1, 2, 3)) * SECOND
    else:
        row.kind, row.every, row.cron = "cron", None, f"*/{arena.chance.choice((1, 2, 3))} * * * * *"
    if row.jitter >= SECOND:
        row.jitter = timedelta(0)
    row.save()
    history.note(row)


def pause(arena: Arena, history: History, row: Schedule) -> None:
    """Pause, or resume."""
    if not history.computed:
        return
    if row.enabled:
        row.pause("soak")
    else:
        row.resume()
    history.note(row)


def change_policy(arena: Arena, history: History, row: Schedule) -> None:
    """Other policies: the points stay."""
    overlaps = ["skip", "queue_one"]
    if row.kwargs.get("seconds", 0) < 1:  # longer runs would only pile up
        overlaps.append("queue_all")
    if history.computed:  # else the oracle would have to know in which order the runs ended
        overlaps.append("allow")
    missed, overlap = arena.chance.choice(("latest", "all", "skip")), arena.chance.choice(overlaps)
    Schedule.objects.filter(pk=row.pk).update(missed=missed, overlap=overlap)


def move(arena: Arena, history: History, row: Schedule) -> None:
    """To the other queue."""
    row.queue = "mail" if row.queue == "default" else "default"
    row.save()


def order(arena: Arena, history: History, row: Schedule) -> None:
    """Run it now, besides its due points."""
    run_now(row)


def replace(arena: Arena, history: History, row: Schedule) -> None:
    """Delete it, and make another one of the same name."""
    if history.computed:
        row.delete()
        history.deleted = True
        arena.histories += schedules(1, arena.trace, name=history.name[:-1], first=int(history.name[-1]))


Edit = Callable[[Arena, History, Schedule], None]
ALL: tuple[Edit, ...] = (retime, retime, pause, pause, change_policy, move, order, replace)


def edit(arena: Arena) -> None:
    """Edit some schedule in some way."""
    if arena.locked:  # the edit itself would fail, and nothing more
        return
    history = arena.history()
    arena.note("edit")
    chosen = arena.chance.choice(ALL)
    history.diary.append((utcnow(), chosen.__name__))
    chosen(arena, history, Schedule.objects.get(pk=history.pk))
