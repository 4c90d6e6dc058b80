"""Runs that a user requests, now or for past due points, and pauses and limits. A requested run is first a row in the
ledger and goes to Redis after the commit; if Redis is down, a worker adds it.

Note [A backfill repeats no known or undecided point]
A backfill leaves out a point that succeeded, has an open row, was backfilled before, or may have been pruned
(`ledger/recording.py`, Note [What was pruned is decided]). It also leaves out a point that the schedule has yet to
decide, because that may be running without a row. It runs all other points: skipped, failed, lost, without a row.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from . import ledger, sync
from .calls import tracing
from .exceptions import InvalidArguments
from .ledger import chain
from .models import Control, Origin, Run, Schedule, Status
from .models.primary import lock_rows
from .models.run import OPEN
from .recurrence import from_ms, to_ms
from .recurrence.point import MICROSECOND, MILLISECOND, to_utc, utcnow

#: Default maximum of runs per backfill; maximum due points that it examines, including those that it leaves out.
LIMIT, MOST_LOOKED_AT = 1000, 20_000
#: Maximum ms by which `run_each_now` moves a request whose instant a manual run of the same schedule already has.
TRIES = 10
#: Reasons to leave a point out, beside the status of its row.
BACKFILLED, UNDECIDED, PRUNED = "backfilled", "undecided", "pruned"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A past due point. `known` is its status in the ledger, `left_out` the reason to leave it out; '' for none."""

    due_at: datetime
    known: str = ""
    left_out: str = ""


def run_now(schedule: Schedule, *, now: datetime | None = None) -> Run:
    """Request one run of a schedule, even a paused one. It ignores overlap and `max_runs` and moves no due point."""
    return run_each_now([schedule], now=now)[0]


def run_each_now(schedules: Iterable[Schedule], *, now: datetime | None = None) -> list[Run]:
    """Request one run of each schedule like `run_now`; after an exception, none is requested."""
    using, at = ledger.get_database(), from_ms(to_ms(now or utcnow()))
    rows = list(dict.fromkeys(schedules))
    for later in range(TRIES):
        with suppress(IntegrityError):  # another request has used the same ms
            return _insert([_request(row, at + later * MILLISECOND, Origin.MANUAL) for row in rows], using)
    return _insert([_request(row, at + TRIES * MILLISECOND, Origin.MANUAL) for row in rows], using)


def _request(schedule: Schedule, due_at: datetime, origin: Origin, **values: Any) -> Run:
    values |= {"origin": origin, "separate": True, "status": Status.QUEUED, "options": tracing.build_options()}
    return Run.build_for(schedule, due_at, **values)


def _insert(runs: list[Run], using: str) -> list[Run]:
    with transaction.atomic(using=using):
        Run._base_manager.using(using).bulk_create(runs)
        sync.put_after_commit(runs, using=using)
    return runs


def plan_backfill(schedule: Schedule, start: datetime, end: datetime, *, limit: int = LIMIT) -> list[Candidate]:
    """Return all past due points of the schedule in `start <= point <= end`, oldest first. Writes nothing.

    The recurrence is the stored one, also for points before the last edit. Raises InvalidArguments with what to do if
    the range cannot be backfilled, InvalidRecurrence without a usable recurrence, ValueError for a naive instant.
    """
    start, end = to_utc(start, "start"), to_utc(end, "end")
    current = ledger.find_schedule(schedule.pk)
    if current is None:
        raise InvalidArguments(_("The schedule was deleted."))
    if end < start:
        raise InvalidArguments(_("The end is before the start."))
    if current.kind == Schedule.Kind.EVERY and current.every_from == Schedule.EveryFrom.FINISH:
        raise InvalidArguments(
            _("Its interval is counted from the end of each run, so it has no past due times. Use “Run now”.")
        )
    pruned = chain.get_state(current).pruned_until
    if pruned is not None and end <= pruned:
        raise InvalidArguments(
            _(
                "The history of this schedule is deleted up to %(until)s UTC. Which due times ran by "
                "then is unknown, so none of them can run again. Choose a later time."
            )
            % {"until": f"{pruned.astimezone(UTC):%Y-%m-%d %H:%M:%S}"}
        )
    end = min(end, utcnow())
    count = current.recurrence.count_between(start, end)
    if count > MOST_LOOKED_AT:
        raise InvalidArguments(
            _("This range has %(count)d due times; at most %(most)d can be examined. Choose a shorter range.")
            % {"count": count, "most": MOST_LOOKED_AT}
        )
    candidates = _list_candidates(current, start, end)
    wanted = sum(not item.left_out for item in candidates)
    if wanted > limit:
        raise InvalidArguments(
            _("This range has %(count)d due times to run; at most %(most)d can start at once. Choose a shorter range.")
            % {"count": wanted, "most": limit}
        )
    return candidates


def backfill(schedule: Schedule, start: datetime, end: datetime, *, limit: int = LIMIT) -> list[Run]:
    """Request a run for each past due point in `start <= point <= end` that is not left out; return the new runs.

    The runs start even if the schedule is paused or busy, possibly concurrently, do not count for `max_runs`, and move
    no due point. Concurrent backfills request each point once. After an exception, none is requested: see
    `plan_backfill`, and Note [A backfill repeats no known or undecided point].
    """
    using = ledger.get_database()
    plan = plan_backfill(schedule, start, end, limit=limit)
    own = Schedule._base_manager.using(using).filter(pk=schedule.pk)
    with transaction.atomic(using=using):
        current = lock_rows(own).first()  # no pruning and no other backfill of it from here on
        if current is None:
            raise InvalidArguments(_("The schedule was deleted."))
        pruned = own.values_list("state__pruned_until", flat=True).first()
        rows = Run._base_manager.using(using).filter(schedule_id=current.pk, origin=Origin.BACKFILL)
        known = set(rows.filter(due_at__gte=start, due_at__lte=end).values_list("due_at", flat=True))
        points = [item.due_at for item in plan if not item.left_out and item.due_at not in known]
        points = [point for point in points if pruned is None or point > pruned]
        first = from_ms(to_ms(utcnow())) - len(points) * MILLISECOND  # dated in sequence: Redis offers them by date
        dates = {point: first + number * MILLISECOND for number, point in enumerate(points)}
        return _insert([_request(current, point, Origin.BACKFILL, created_at=dates[point]) for point in points], using)


def _list_candidates(schedule: Schedule, start: datetime, end: datetime) -> list[Candidate]:
    points = list(_list_points(schedule, start, end))
    if not points:
        return []
    own, backfilled = _read_ledger(schedule, points)
    state = chain.get_state(schedule)
    waiting = state.next_due_at  # may be due since before a pause or an edit, and running now
    following = chain.find_next_point(schedule, state) if schedule.enabled else None
    candidates = []
    for point in points:
        known, left_out = own.get(point, ""), ""
        if point in backfilled:
            known, left_out = backfilled[point], BACKFILLED
        elif known in OPEN or known == Status.SUCCEEDED:
            left_out = known
        elif state.pruned_until is not None and point <= state.pruned_until:
            left_out = PRUNED
        elif not known and (point == waiting or (following is not None and point >= following)):
            left_out = UNDECIDED
        candidates.append(Candidate(point, known, left_out))
    return candidates


def _list_points(schedule: Schedule, start: datetime, end: datetime) -> Iterator[datetime]:
    rule = schedule.recurrence
    point = rule.next_after(start - MICROSECOND)
    while point is not None and point <= end:
        yield from_ms(to_ms(point))
        point = rule.next_after(point)


def _read_ledger(schedule: Schedule, points: list[datetime]) -> tuple[dict[datetime, str], dict[datetime, str]]:
    """Return the status by point: of due points, including skipped stretches, and of backfills."""
    first, last = points[0], points[-1]
    runs = Run._base_manager.using(ledger.get_database()).filter(schedule_id=schedule.pk)
    rows = runs.values_list("due_at", "origin", "status", "last_due_at")
    before = rows.filter(due_at__lt=first).order_by("-due_at")[:3]  # a stretch may reach into the range
    own: dict[datetime, str] = {}
    backfilled: dict[datetime, str] = {}
    for due_at, origin, status, last_due_at in (
        *reversed(before),
        *rows.filter(due_at__gte=first, due_at__lte=last).order_by("due_at"),
    ):
        if origin == Origin.BACKFILL:
            backfilled[due_at] = status
        elif origin == Origin.DUE:
            if last_due_at is not None:
                stretch = points[bisect_left(points, due_at) : bisect_right(points, last_due_at)]
                own |= dict.fromkeys(stretch, Status.SKIPPED.value)
            own[due_at] = status
    return own, backfilled


def pause(queue: str = "", *, task: str = "", reason: str = "", until: datetime | None = None, by: str = "") -> Control:
    """Pause a queue or a task. A second after the commit, at the latest, nothing starts; running executions continue.

    Jobs wait, and `missed` decides about due points that are late after the pause. It ends at `until` (aware) or with
    `resume`. `by` names the user. Raises Django's ValidationError for an unknown queue or task, or a past `until`.
    """
    return _change(queue, task, by, paused=True, reason=reason, until=until)


def resume(queue: str = "", *, task: str = "", by: str = "") -> Control:
    """Resume a queue within a second of the commit, or a task within some seconds."""
    return _change(queue, task, by, paused=False, reason="", until=None)


def limit(queue: str, most: int | None, *, by: str = "") -> Control:
    """Let at most `most` due points and jobs of a queue run at a time; None removes the limit.

    With one shard, the limit is exact, even if processes are killed. With several shards, each gets an equal part of
    it, at least one.
    """
    return _change(queue, "", by, most=most)


def _change(queue: str, task: str, by: str, **values: Any) -> Control:
    if bool(queue) is bool(task):
        raise TypeError("Name a queue or a task: pause('mail') or pause(task='app.tasks.send').")
    using = ledger.get_database()
    with transaction.atomic(using=using):
        kind, name = (Control.Target.QUEUE, queue) if queue else (Control.Target.TASK, task)
        rows = Control.objects.using(using).select_for_update()
        row = rows.filter(kind=kind, name=name).first() or Control(kind=kind, name=name)
        for field, value in {**values, "changed_by": by[:200], "changed_at": utcnow()}.items():
            setattr(row, field, value)
        row.full_clean(exclude=["changed_at"])
        row.save(using=using)
    return row
