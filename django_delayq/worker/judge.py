"""What to do with each claimed member: rules R1, R2, R7, R8 and the policies. Reads the ledger, writes nothing.

Every function returns through a `Verdicts`; the dispatcher carries them out.

Note [Read after the claim]
Rule R1. Redis holds ids and times, the database holds definitions. Between a save and its mirror, and after any loss on
either side, the two differ. So the definition, its state and the open rows are read *after* the claim, for the whole
batch: what was edited, disabled, deleted or moved by then is treated as such, and a stale entry costs a wasted wake-up,
never a wrong run. A member whose point Redis has lost is handed out too, because only a claimer can rebuild it.

Note [Read under the lease]
What is written rests on the rows as they were read, and is refused where somebody changed them since. So the reading
must have ended before the lease did: a process that stood still in between would read the running row of the worker
that took over, and could close it.

Note [What is owed]
Rule R2. A claim may name a point that was decided already (its settle was lost, or Redis went back to a snapshot), one
that no definition ever had (damage), or one that lies ahead of a missing one (the settles of two points swapped with a
loss in between). None of them is executed. The member goes to its first missing point instead (`chain.py`), so that a
hole is filled and not jumped over, and the chain heals by being claimed.

Note [Cannot be computed]
Rule R7. A recurrence that raises (its time zone is gone, SQL wrote nonsense) has no next point to settle to. Dropping
it silently would end the schedule unseen; trying again for ever would spin. So it is parked: the member leaves Redis,
the reason stands in the state and in the admin, and any edit mirrors it anew.

Note [The newest runs at once]
Rule R9. Where points are skipped and a later one runs instead (the newest missed, the last that `queue_one` keeps), the
claim that skips them runs it too: settled to it instead, the member would queue behind all that are older, and find it
missed again, so that under overload nothing would run. The skipped stretches, one per reason, and the row of the point
that runs are written in one transaction, which is won by the first stretch. Until then Redis and the ledger only know
the first skipped point; so whoever takes it over decides once more as its last holder did, whose fence tells when that
was, and finds the point that he may have begun. From then on that row is the chain's first missing point; Redis learns
of it when it is settled, or from the next claimer, who finds its own point decided (R2).

Note [Left by an edit]
Rule R8. A point that was due already when its definition was edited belongs to the definition that made it due, so it
still runs once; where the edit was a pause it is skipped(paused). What else the old definition left undecided, up to
`effective_from`, nobody can count any more, as the old recurrence is gone: it becomes one stretch skipped(edited) of
unknown length. `ScheduleState.next_due_at`, written with the edit, says whether anything was left at all.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db import DatabaseError

from .. import chain, ledger
from ..compat import AnyTask
from ..exceptions import InvalidRecurrence, UnknownTask
from ..ledger import Outcome, version_of
from ..models import Origin, Schedule, Status
from ..registry import get_task
from ..rows import RunRow, ScheduleRow, StateRow
from ..timing import Skip, Windowed, decide_all, from_ms, to_ms, too_old
from .entry import Held

logger = logging.getLogger("django_delayq.worker")


@dataclass(slots=True)
class Verdicts:
    """The batch, sorted by what happens next."""

    #: Run at once: nobody can have run these before.
    execute: list[tuple[Held, AnyTask]] = field(default_factory=list)
    #: Somebody may have run these before (rule R2b): write a running row, then run.
    suspects: list[tuple[Held, AnyTask]] = field(default_factory=list)
    #: Record the outcome (skipped, lost, handed over), then settle.
    record: list[Held] = field(default_factory=list)
    #: Stretches left by edits, to be recorded before anything else.
    stretches: list[Outcome] = field(default_factory=list)
    #: Open runs of schedules that are gone: close them.
    orphans: list[RunRow] = field(default_factory=list)
    #: Nothing to record: settle to this point of this schedule, or drop it where there is none.
    settle: list[tuple[Held, datetime | None, ScheduleRow]] = field(default_factory=list)
    #: Of nothing that is left or belongs here: drop from Redis.
    drop: list[Held] = field(default_factory=list)
    #: The lease ran out before the rows were read: they may be another worker's by now.
    lapsed: list[Held] = field(default_factory=list)
    #: This code does not know the task, or cannot make sense of the row: hand back for others.
    unknown: list[Held] = field(default_factory=list)
    #: The next point cannot be computed: park.
    park: list[Held] = field(default_factory=list)

    def take_out(self, members: Collection[str]) -> list[Held]:
        """Take these members out of all that would be executed, recorded, handed back or parked; return them."""
        out: list[Held] = []
        for group in (self.record, self.unknown, self.park):
            out += [held for held in group if held.member in members]
            group[:] = [held for held in group if held.member not in members]
        for pairs in (self.execute, self.suspects):
            out += [held for held, _ in pairs if held.member in members]
            pairs[:] = [pair for pair in pairs if pair[0].member not in members]
        return out


def judge(entries: Sequence[Held], worker: str) -> Verdicts:
    """Judge a batch with at most three queries, whatever its size. See Note [Read after the claim]."""
    verdicts = Verdicts()
    parsed = [(held, chain.parse_member(held.member)) for held in entries]
    runs = ledger.load_runs([item[1] for _, item in parsed if item and item[0] == "r"])
    own = [item[1] for _, item in parsed if item and item[0] == "s"]
    schedules = ledger.load_schedules({*own, *(run.schedule_id for run in runs.values())})
    open_rows = ledger.load_open_rows(own) if own else {}
    for held, item in parsed:
        held.generation = held.entry.generation or 0
        try:
            if held.lapsed():  # asked after the reading: see Note [Read under the lease]
                verdicts.lapsed.append(held)
            elif item is None:
                logger.warning("Dropped %r from %s: it is no member of ours.", held.member, held.place)
                verdicts.drop.append(held)
            elif item[0] == "r":
                run = runs.get(item[1])
                _judge_run(held, run, schedules.get(run.schedule_id) if run else None, verdicts, worker)
            else:
                _judge_schedule(held, schedules.get(item[1]), open_rows.get(item[1], []), verdicts, worker)
        except InvalidRecurrence:
            verdicts.park.append(held)
        except DatabaseError:
            raise
        except Exception:  # one row that nobody foresaw must not hold up the others of its batch
            logger.exception("%s in %s could not be judged; it is handed back.", held.member, held.place)
            verdicts.unknown.append(held)
    return verdicts


def new_run(held: Held, schedule: ScheduleRow, due_at: datetime, worker: str, **values: object) -> RunRow:
    """Return an unsaved row of this schedule's chain, claimed by this worker."""
    return RunRow.of(schedule, due_at, fence=held.fence, claimed_at=held.claimed_at, worker=worker, **values)


def _judge_run(held: Held, run: RunRow | None, schedule: ScheduleRow | None, verdicts: Verdicts, worker: str) -> None:
    """Judge a run apart from its schedule's chain."""
    if run is not None and run.queue != held.place.queue:
        logger.warning("Dropped %s from %s: it belongs to the queue %r.", held.member, held.place, run.queue)
        run = None
    if run is None or not run.apart or not Status(run.status).is_open:  # a restored database gives a key once more
        verdicts.drop.append(held)
    elif schedule is None:
        verdicts.orphans.append(run)
        verdicts.drop.append(held)
    elif run.origin == Origin.DUE and not schedule.enabled:
        held.outcome = Outcome(run, schedule, version_of(run))
        _close(run, held, worker, Status.SKIPPED if run.status == Status.QUEUED else Status.FAILED, "paused")
        verdicts.record.append(held)
    else:
        held.outcome = Outcome(run, schedule, version_of(run))
        _dispatch(held, verdicts.suspects, verdicts)


def _judge_schedule(
    held: Held, schedule: ScheduleRow | None, rows: list[RunRow], verdicts: Verdicts, worker: str
) -> None:
    """Judge a member of a schedule's chain."""
    if schedule is None:
        verdicts.drop.append(held)
        return
    # The larger of the two: Redis may not have seen the last edit yet, or know one that a restored database lost.
    held.generation = max(held.generation, schedule.generation)
    if schedule.queue != held.place.queue:
        verdicts.drop.append(held)
        return
    state = schedule.state
    row = next((row for row in rows if held.entry.point_ms is not None and row.due_at == _point(held)), None)
    if row is None and rows and held.entry.point_ms is not None and not _undecided(_point(held), state):
        verdicts.settle.append((held, rows[0].due_at, schedule))  # its row came with the stretch that decided this one
        return
    owed = _owed(schedule, state)
    if row is None and owed is not None and owed < _point(held) <= schedule.effective_from:
        # The edit came to Redis late, when a later point had fallen due there.
        verdicts.settle.append((held, owed, schedule))
        return
    if not schedule.enabled:
        _judge_disabled(held, schedule, state, row, verdicts, worker)
        return
    upcoming = chain.next_point(schedule, state)
    first = rows[0].due_at if rows else upcoming
    early = held.entry.point_ms is not None and _point(held) > held.claimed_at  # its score was damaged
    if held.entry.point_ms is None or early or _not_owed(_point(held), schedule, state, row, first):
        verdicts.settle.append((held, first if rows else owed or first, schedule))
        return
    _left_by_edit(held, schedule, state, verdicts, worker)
    if row is not None:
        held.outcome = Outcome(row, schedule, version_of(row))
        _judge_again(held, verdicts, worker)
    else:
        _judge_new(held, schedule, state, verdicts, worker)


def _point(held: Held) -> datetime:
    return from_ms(held.entry.point_ms or 0)


def _undecided(point: datetime, state: StateRow) -> bool:
    return state.last_due_at is None or point > state.last_due_at


def _owed(schedule: ScheduleRow, state: StateRow) -> datetime | None:
    """Return the first undecided point of the definitions before the last edit, as the edit noted it; None for none."""
    due: datetime | None = state.next_due_at
    if due is None or not schedule.created_at < due <= schedule.effective_from or not _undecided(due, state):
        return None
    return due


def _not_owed(
    point: datetime, schedule: ScheduleRow, state: StateRow, row: RunRow | None, first: datetime | None
) -> bool:
    """Say whether the point is decided, a hole was left before it, or is of no definition. Note [What is owed]."""
    if row is not None:
        return point != first
    if not _undecided(point, state) or point <= schedule.created_at:
        return True
    if point <= schedule.effective_from:  # already due when the definition was edited: still runs once (rule R8)
        return False
    return point != first


def _judge_disabled(
    held: Held, schedule: ScheduleRow, state: StateRow, row: RunRow | None, verdicts: Verdicts, worker: str
) -> None:
    """A point that waits for its retry ends as failed(paused); one that was due when it was disabled is skipped."""
    if row is not None:
        held.outcome = Outcome(row, schedule, version_of(row))
        _close(row, held, worker, Status.FAILED if row.status == Status.RETRYING else Status.LOST, "paused")
        _left_by_edit(held, schedule, state, verdicts, worker, reason="paused")
    elif (
        held.entry.point_ms is not None
        and _undecided(_point(held), state)
        and schedule.created_at < _point(held) <= schedule.effective_from
    ):
        run = new_run(held, schedule, _point(held), worker)
        if _point(held) < schedule.effective_from:  # more may have fallen due by then, of this definition or others
            run.last_due_at, run.points = schedule.effective_from, 0
        held.outcome = Outcome(run, schedule)
        _close(run, held, worker, Status.SKIPPED, "paused")
    else:
        verdicts.settle.append((held, _owed(schedule, state), schedule))
        return
    verdicts.record.append(held)


def _left_by_edit(
    held: Held, schedule: ScheduleRow, state: StateRow, verdicts: Verdicts, worker: str, reason: str = "edited"
) -> None:
    """Explain what the definition before an edit left undecided, as one stretch. Note [Left by an edit]."""
    point, edited = _point(held), schedule.effective_from
    if point <= edited:
        first, after_this = point + timedelta(milliseconds=1), True
        if first > edited:
            return
    else:
        owed = _owed(schedule, state)
        if owed is None:
            return
        first, after_this = owed, False
    run = new_run(held, schedule, first, worker, last_due_at=edited, points=0)
    _close(run, held, worker, Status.SKIPPED, reason)
    if after_this:
        held.beside.append(Outcome(run, schedule))
    else:
        verdicts.stretches.append(Outcome(run, schedule))


def _judge_again(held: Held, verdicts: Verdicts, worker: str) -> None:
    """A retry, or a point whose last holder may have died: runs unjudged, but within the catch-up window."""
    assert held.outcome is not None  # noqa: S101 - set by the callers
    run, schedule = held.outcome.run, held.outcome.schedule
    if too_old(run.due_at, held.claimed_at, schedule.policies):
        _close(run, held, worker, Status.FAILED if run.status == Status.RETRYING else Status.LOST, "catch_up_window")
        verdicts.record.append(held)
    else:
        _dispatch(held, verdicts.suspects, verdicts)


def _judge_new(held: Held, schedule: ScheduleRow, state: StateRow, verdicts: Verdicts, worker: str) -> None:
    """A point without a row: on time, or for the policies to decide."""
    skips, due_at, again = _decide(held, schedule, state)
    skipped = [Outcome(_skipped(held, schedule, skip, worker), schedule) for skip in skips]
    for outcome in skipped[1:]:
        outcome.owner = skipped[0]
    if due_at is None:
        held.outcome, held.beside = skipped[0], [*skipped[1:], *held.beside]
        verdicts.record.append(held)
        return
    run = new_run(held, schedule, due_at, worker)
    held.outcome = Outcome(run, schedule)
    if skipped:  # see Note [The newest runs at once]
        held.outcome.owner, held.beside = skipped[0], skipped
    if again:
        run.status = Status.RUNNING
        _judge_again(held, verdicts, worker)
    elif schedule.overlap == Schedule.Overlap.ALLOW:
        run.status, run.apart, run.fence, run.claimed_at, run.worker = Status.QUEUED, True, "", None, ""
        verdicts.record.append(held)
    else:
        _dispatch(held, verdicts.execute, verdicts)


def _decide(held: Held, schedule: ScheduleRow, state: StateRow) -> tuple[list[Skip], datetime | None, bool]:
    """Return what is skipped, which point runs (None: none), and whether somebody may have begun it already.

    Whoever let his lease run out decided when he claimed, by the same definition and state. See Note [The newest runs
    at once]. Also where all that he had was to be skipped: he may record it yet, against nobody but a `running` row.
    """
    if held.entry.lapsed:
        point, lapsed_ms = _point(held), held.entry.lapsed_ms
        if lapsed_ms is None or point <= schedule.effective_from or schedule.overlap == Schedule.Overlap.ALLOW:
            return [], point, True
        skips, due_at = _decide_at(min(from_ms(lapsed_ms), held.claimed_at), held, schedule, state)
        if due_at is not None:
            return skips, due_at, True
    return *_decide_at(held.claimed_at, held, schedule, state), held.entry.lapsed


def _decide_at(now: datetime, held: Held, schedule: ScheduleRow, state: StateRow) -> tuple[list[Skip], datetime | None]:
    point = _point(held)
    rule, base = chain.rule_and_base(schedule, state)
    old = point <= schedule.effective_from
    if old:  # of the definition before: what is missed now has no points before the edit
        rule = Windowed(rule, start=base + timedelta(microseconds=1))
    skips, due_at = decide_all(rule, point, now, state.busy_from, state.last_finished_at, schedule.policies)
    if skips and old:  # a stretch, or what follows, would hold what the edit left
        return [replace(skips[0], last=point, points=1)], None
    return skips, None if due_at is None else from_ms(to_ms(due_at))


def _skipped(held: Held, schedule: ScheduleRow, skip: Skip, worker: str) -> RunRow:
    run = new_run(held, schedule, from_ms(to_ms(skip.first)), worker)
    if skip.points > 1:
        run.points, run.last_due_at = skip.points, from_ms(to_ms(skip.last))
    _close(run, held, worker, Status.SKIPPED, skip.reason)
    return run


def _close(run: RunRow, held: Held, worker: str, status: Status, reason: str) -> None:
    ledger.keep_former(run, held.lapsed_at)
    run.status, run.reason, run.fence, run.worker = status, reason, held.fence, worker
    run.claimed_at = run.claimed_at or held.claimed_at
    run.finished_at = held.claimed_at


def _dispatch(held: Held, target: list[tuple[Held, AnyTask]], verdicts: Verdicts) -> None:
    assert held.outcome is not None  # noqa: S101 - set by the callers
    try:
        target.append((held, get_task(held.outcome.schedule.task)))
    except UnknownTask as error:
        logger.warning("%s is released for other workers: %s", held.outcome.schedule, error)
        verdicts.unknown.append(held)
