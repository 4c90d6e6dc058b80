"""Runs that a person orders: one now, or one for each of some due points of the past.

An order is a row of the ledger first, and goes to Redis after the commit; so it is not lost where Redis is down.

Note [What a backfill leaves out]
A point that succeeded, that has an open row, or that was backfilled before is not run again: there is one row per
schedule, origin and point. Nor is a point that the schedule's own chain has still to decide: it may be running at this
moment without a row, and would run twice. Skipped, failed and lost points, and those without any row, are ordered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from . import chain, ledger, mirror
from .exceptions import InvalidBackfill
from .fields import utcnow
from .models import Origin, Run, Schedule, Status
from .models.run import OPEN
from .timing import from_ms, to_ms
from .timing.point import MICROSECOND, as_utc

#: Runs that one backfill orders, unless it is told otherwise.
LIMIT = 1000
#: Due points that one backfill looks at: those that are left out cost time too.
MOST_LOOKED_AT = 20_000
#: Reasons to leave a point out that are no status; the others are the status of its row.
BACKFILLED, UNDECIDED = "backfilled", "undecided"
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A due point of the past. `known` is its status in the ledger, `left_out` why it is not ordered; empty if none."""

    due_at: datetime
    known: str = ""
    left_out: str = ""


def run_now(schedule: Schedule, *, now: datetime | None = None) -> Run:
    """Order one run of a schedule, also of a paused one. It ignores overlap and `max_runs` and moves no due point.

    Where Redis is down, a worker puts the order there.
    """
    using = ledger.database()
    run = Run.of(schedule, from_ms(to_ms(now or utcnow())), origin=Origin.MANUAL, apart=True, status=Status.QUEUED)
    with transaction.atomic(using=using):
        run.save(using=using, force_insert=True)
        mirror.enqueue_after_commit([run], using=using)
    return run


def plan_backfill(schedule: Schedule, start: datetime, end: datetime, *, limit: int = LIMIT) -> list[Candidate]:
    """Return every past due point of the schedule in `start <= point <= end`, oldest first. Writes nothing.

    The recurrence is the one that the database has now, also for points before the last edit or the creation.

    Raises:
        InvalidBackfill: It cannot be ordered like this; says what to do.
        InvalidRecurrence: The schedule has no usable recurrence.
        ValueError: An instant is naive.
    """
    return _plan(_read(schedule), as_utc(start, "start"), as_utc(end, "end"), limit)


def backfill(schedule: Schedule, start: datetime, end: datetime, *, limit: int = LIMIT) -> list[Run]:
    """Order a run for each past due point in `start <= point <= end` that is not left out; return those ordered here.

    See Note [What a backfill leaves out]. The runs are members of their own: they start also while the schedule is
    paused or busy, perhaps side by side, count for no `max_runs`, and move neither `last_due_at` nor the next due
    point. After an exception none is ordered. What two people order at once is ordered once. Where Redis is down, the
    workers' sweeps put them there.

    Raises:
        InvalidBackfill: More points than `limit`, or it cannot be ordered like this; says what to do.
        InvalidRecurrence: The schedule has no usable recurrence.
        ValueError: An instant is naive.
    """
    using = ledger.database()
    current = _read(schedule)
    plan = _plan(current, as_utc(start, "start"), as_utc(end, "end"), limit)
    with transaction.atomic(using=using):
        runs = _insert(_rows(current, [item.due_at for item in plan if not item.left_out]), using)
        mirror.enqueue_after_commit(runs, using=using)
    return runs


def _read(schedule: Schedule) -> Schedule:
    current = ledger.find_schedule(schedule.pk)
    if current is None:
        raise InvalidBackfill(_("The schedule was deleted."))
    return current


def _plan(schedule: Schedule, start: datetime, end: datetime, limit: int) -> list[Candidate]:
    if end < start:
        raise InvalidBackfill(_("The end is before the start."))
    if schedule.kind == Schedule.Kind.EVERY and schedule.every_from == Schedule.EveryFrom.FINISH:
        raise InvalidBackfill(
            _("Its interval is counted from the end of each run, so it has no due points in the past. Use Run now.")
        )
    end = min(end, utcnow())
    count = schedule.recurrence.count_between(start, end)
    if count > MOST_LOOKED_AT:
        raise InvalidBackfill(
            _("There are %(count)d due points in this time; at most %(most)d are looked at. Choose a shorter time.")
            % {"count": count, "most": MOST_LOOKED_AT}
        )
    points = list(_points(schedule, start, end))
    candidates = list(_compare(schedule, points)) if points else []
    wanted = sum(not item.left_out for item in candidates)
    if wanted > limit:
        raise InvalidBackfill(
            _(
                "There are %(count)d due points to run in this time; at most %(most)d are ordered at once. Choose a "
                "shorter time."
            )
            % {"count": wanted, "most": limit}
        )
    return candidates


def _points(schedule: Schedule, start: datetime, end: datetime) -> Iterator[datetime]:
    rule = schedule.recurrence
    point = rule.next_after(start - MICROSECOND)
    while point is not None and point <= end:
        yield from_ms(to_ms(point))
        point = rule.next_after(point)


@dataclass(slots=True)
class _Ledger:
    """What the ledger says of a schedule's points: statuses by point, and the ends of skipped stretches in order."""

    chain: dict[datetime, str] = field(default_factory=dict)
    backfilled: dict[datetime, str] = field(default_factory=dict)
    stretches: list[tuple[datetime, datetime]] = field(default_factory=list)


def _read_ledger(schedule: Schedule, first: datetime, last: datetime) -> _Ledger:
    own = Run._base_manager.using(ledger.database()).filter(schedule_id=schedule.pk)
    columns = ("due_at", "origin", "status", "last_due_at")
    before = own.filter(due_at__lt=first).order_by("-due_at").values_list(*columns)[:3]  # a stretch may reach into it
    inside = own.filter(due_at__gte=first, due_at__lte=last).order_by("due_at").values_list(*columns)
    found = _Ledger()
    for due_at, origin, status, last_due_at in [*reversed(before), *inside]:
        if origin == Origin.BACKFILL:
            found.backfilled[due_at] = status
        elif origin == Origin.DUE:
            found.chain[due_at] = status
            if last_due_at is not None:
                found.stretches.append((due_at, last_due_at))
    return found


def _compare(schedule: Schedule, points: Sequence[datetime]) -> Iterator[Candidate]:
    found = _read_ledger(schedule, points[0], points[-1])
    stretches = iter(found.stretches)
    upcoming, skipped_until = next(stretches, None), None
    state = chain.state_of(schedule)
    owed = state.next_due_at  # may be due since before a pause or an edit, and run at this moment
    following = chain.next_point(schedule, state) if schedule.enabled else None
    for point in points:
        while upcoming is not None and upcoming[0] <= point:
            skipped_until, upcoming = upcoming[1], next(stretches, None)
        known = found.chain.get(point, "")
        if not known and skipped_until is not None and point <= skipped_until:
            known = Status.SKIPPED.value
        if point in found.backfilled:
            yield Candidate(point, found.backfilled[point], BACKFILLED)
        elif known in OPEN or known == Status.SUCCEEDED:
            yield Candidate(point, known, known)
        elif not known and (point == owed or (following is not None and point >= following)):
            yield Candidate(point, known, UNDECIDED)
        else:
            yield Candidate(point, known)


def _rows(schedule: Schedule, points: Sequence[datetime]) -> list[Run]:
    """Return an unsaved row per point. They are dated in their order, in which Redis will offer them."""
    now = from_ms(to_ms(utcnow()))
    values = {"origin": Origin.BACKFILL, "apart": True, "status": Status.QUEUED}
    return [
        Run.of(schedule, point, created_at=now - (len(points) - index) * MILLISECOND, **values)
        for index, point in enumerate(points)
    ]


def _insert(runs: list[Run], using: str) -> list[Run]:
    """Insert these rows and return them; those whose point somebody else has ordered just now are left out."""
    try:
        with transaction.atomic(using=using):
            Run._base_manager.using(using).bulk_create(runs)
        return runs
    except IntegrityError:
        return [run for run in runs if _insert_one(run, using)]


def _insert_one(run: Run, using: str) -> bool:
    run.pk = None
    run._state.adding = True
    try:
        with transaction.atomic(using=using):
            run.save(using=using, force_insert=True)
        return True
    except IntegrityError:
        return False
