"""Decides each claimed member by rules R1, R2, R7, R8 and the policies. Writes only that an execution is running.

Note [Read after the claim]
Rule R1. Definitions, states and open rows are read *after* the claim: Redis may differ after a save or a loss.

Note [Reads after the end of a lease do not count]
Rows that were read after the lease had ended are not used: they may include the `running` row of the worker that took
over, and this worker would close it.

Note [Only the first missing point runs]
Rule R2. A point that was already decided, that no definition ever had, or that follows a missing point is not executed:
the member is settled to its first missing point (`chain.py`), so that no gap remains.

Note [One claim skips and runs]
Rule R9. If points are skipped and a later one runs instead, the same claim runs it; otherwise the member would queue
behind all older ones and be missed again. One transaction writes the skipped stretches and the row of that point. A
worker that takes over repeats the decision as of the last claim, and finds the point that may have been begun.

Note [A point due at an edit runs once]
Rule R8. A point that was due before an edit still runs once; after a pause it is skipped(paused). The other undecided
points, if `ScheduleState.next_due_at` shows any, become one stretch skipped(edited) of unknown length.

Note [Take-overs write first]
Rule R2b. After a lapsed lease, or if a row exists, another worker may still record the point. So the row is set to
`running` under this worker's fence, by compare-and-set against the values read under the lease, before the call.

Note [Long executions are shown]
After `running_after_seconds` an execution gets a `running` row; no take-over is counted. If another worker has decided
concurrently, or the database fails, the task continues; the write of its outcome detects the conflict.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import DatabaseError

from .. import ledger
from ..calls import build_call
from ..calls.compat import AnyTask
from ..calls.registry import get_task
from ..exceptions import InvalidRecurrence, UnknownTask
from ..index import Broker
from ..ledger import Outcome, Won, chain, get_version
from ..ledger.rows import RunRow, ScheduleRow
from ..models import Origin, Schedule, Status
from ..models.run import OPEN
from ..recurrence import Skip, Windowed, decide_all, from_ms, is_too_old, to_ms
from .held import Lease, Verdicts, is_key_kept

logger = logging.getLogger("django_delayq.worker")


def judge(entries: Sequence[Lease], broker: Broker) -> Verdicts:
    """Judge a batch with at most three queries. See Note [Read after the claim]."""
    verdicts = Verdicts()
    here: list[tuple[Lease, tuple[str, int] | None]] = []
    for held in entries:
        belongs = broker.get_shard(held.member, held.shard.queue) == held.shard
        here.append((held, chain.parse_member(held.member) if belongs else None))
    own = [item[1] for _, item in here if item and item[0] == "s"]
    separate = [item[1] for _, item in here if item and item[0] == "r"]
    runs = ledger.load_runs(separate) if separate else {}
    named = {run.schedule_id for run in runs.values() if run.schedule_id is not None}
    schedules = ledger.load_schedules({*own, *named}) if own or named else {}
    open_rows = ledger.load_open_rows(own) if own else {}
    for held, item in here:
        held.generation, held.beside = held.entry.generation or 0, []
        try:
            if held.is_lapsed():  # checked after the read: see Note [Reads after the end of a lease do not count]
                verdicts.gone.append(held)
            elif item is None:
                logger.warning("Dropped %r from %s: it does not belong there.", held.member, held.shard)
                verdicts.settle.append(held.drop())
            elif item[0] == "r":
                run = runs.get(item[1])
                _judge_run(held, run, schedules.get(run.schedule_id or 0) if run else None, verdicts)
            else:
                _judge_schedule(held, schedules.get(item[1]), open_rows.get(item[1], []), verdicts)
        except InvalidRecurrence:
            verdicts.broken.append(held)
        except UnknownTask as error:
            logger.warning("%s is released for other workers: %s", held.title, error)
            verdicts.unknown.append(held)
        except DatabaseError:
            raise
        except Exception:  # an unexpected row must not hold up the rest of its batch
            logger.exception("%s in %s could not be judged; it is handed back.", held.member, held.shard)
            verdicts.unknown.append(held)
    return verdicts


def _judge_run(held: Lease, run: RunRow | None, schedule: ScheduleRow | None, verdicts: Verdicts) -> None:
    if run is not None and run.queue != held.shard.queue:
        logger.warning("Dropped %s from %s: it belongs to the queue %r.", held.member, held.shard, run.queue)
        run = None
    if run is None or not run.separate or run.status not in OPEN:
        verdicts.settle.append(held.drop())
    elif held.entry.generation is not None and held.entry.generation != chain.get_run_generation(run):
        verdicts.again.append(run)  # a restored database has assigned its primary key again
        verdicts.settle.append(held.drop())
    elif run.is_job:
        _judge_job(held, run, verdicts)
    elif schedule is None:
        verdicts.orphans.append(run)
        verdicts.settle.append(held.drop())
    else:
        held.outcome = Outcome(run, schedule, get_version(run))
        if run.origin == Origin.DUE and not schedule.enabled:
            held.close(run, Status.SKIPPED if run.status == Status.QUEUED else Status.FAILED, "paused")
            verdicts.decided.append(held)
        else:
            _prepare(held, get_task(schedule.task), schedule.timeout)
            verdicts.suspects.append(held)


def _judge_job(held: Lease, run: RunRow, verdicts: Verdicts) -> None:
    if run.created_at < run.due_at and held.claimed_at < run.due_at and run.status != Status.RUNNING:
        verdicts.settle.append(held.go_to(run.due_at, None))
        return
    held.outcome = Outcome(run, None, get_version(run))
    task = get_task(run.task)
    call = held.outcome.job = build_call(run, task)
    if run.status == Status.RETRYING and (delay_ms := held.get_backoff_left_ms(run, call)) > 0:
        verdicts.settle.append(held.wait("retry", delay_ms))
        return
    run.claimed_at, run.fence = run.claimed_at or held.claimed_at, held.fence
    begun = held.entry.lapsed or run.status != Status.QUEUED
    # A key that is held until the start is released before it: see `ledger/jobs.py`, Note [Key holders are locked].
    keyed = run.unique_key is not None and not is_key_kept(run)
    _prepare(held, task, call.timeout)
    if held.entry.lapsed and run.status == Status.QUEUED and not keyed:  # its first execution has no row
        held.take_overs += 1
    (verdicts.suspects if begun or keyed else verdicts.start).append(held)


def _judge_schedule(held: Lease, schedule: ScheduleRow | None, rows: list[RunRow], verdicts: Verdicts) -> None:
    if schedule is None:
        verdicts.settle.append(held.drop())
        return
    # The larger one: Redis may not have the last edit yet, or may have an edit that a restored database lost.
    held.generation = max(held.generation, schedule.generation)
    if schedule.queue != held.shard.queue:
        verdicts.settle.append(held.drop())
        return
    point, edited, state = held.point, schedule.effective_from, schedule.state
    known = held.entry.point_ms is not None  # otherwise Redis has lost the point, and `point` is the epoch
    row = next((row for row in rows if row.due_at == point), None)
    owed = chain.find_undecided(schedule, state)
    decided = state.last_due_at is not None and point <= state.last_due_at
    if row is None and known:
        if rows and decided:  # the stretch that decided this point also wrote this row
            verdicts.settle.append(held.go_to(rows[0].due_at, schedule))
            return
        if owed is not None and owed < point <= edited:  # the edit arrived after a later point had become due
            verdicts.settle.append(held.go_to(owed, schedule))
            return
    if not schedule.enabled:
        _judge_disabled(held, schedule, row, verdicts, owed=owed, decided=decided)
        return
    upcoming = chain.find_next_point(schedule, state)
    first = rows[0].due_at if rows else upcoming
    early = point > held.claimed_at
    # See Note [Only the first missing point runs]. A point due before the edit still runs once (rule R8).
    if row is None and (point <= schedule.created_at or decided):
        owes = False
    elif row is None and point <= edited:
        owes = True
    else:
        owes = point == first
    if not known or early or not owes:
        verdicts.settle.append(held.go_to(first if rows else owed or first, schedule))
        return
    if point <= edited or owed is not None:
        _skip_left_by_edit(held, schedule, owed, verdicts)
    if row is None:
        _judge_new(held, schedule, verdicts)
    else:
        held.outcome = Outcome(row, schedule, get_version(row))
        _judge_again(held, verdicts)


def _judge_disabled(
    held: Lease, schedule: ScheduleRow, row: RunRow | None, verdicts: Verdicts, *, owed: datetime | None, decided: bool
) -> None:
    """End a point that waits for its retry; skip a point that was due when the schedule was disabled."""
    if row is not None:
        held.outcome = Outcome(row, schedule, get_version(row))
        held.close(row, Status.FAILED if row.status == Status.RETRYING else Status.LOST, "paused")
        _skip_left_by_edit(held, schedule, owed, verdicts, reason="paused")
    elif held.entry.point_ms and not decided and schedule.created_at < held.point <= schedule.effective_from:
        run = held.build_run(schedule, held.point)
        if held.point < schedule.effective_from:  # other points may have become due before the edit
            run.last_due_at, run.points = schedule.effective_from, 0
        held.outcome = Outcome(run, schedule)
        held.close(run, Status.SKIPPED, "paused")
    else:
        verdicts.settle.append(held.go_to(owed, schedule))
        return
    verdicts.decided.append(held)


def _skip_left_by_edit(
    held: Lease, schedule: ScheduleRow, owed: datetime | None, verdicts: Verdicts, reason: str = "edited"
) -> None:
    """Record the points that an edit left undecided as one stretch. See Note [A point due at an edit runs once]."""
    point, edited = held.point, schedule.effective_from
    first = point + timedelta(milliseconds=1) if point <= edited else owed
    if first is None or first > edited:
        return
    run = held.build_run(schedule, first, last_due_at=edited, points=0)
    held.close(run, Status.SKIPPED, reason)
    (held.beside if point <= edited else verdicts.stretches).append(Outcome(run, schedule))


def _judge_new(held: Lease, schedule: ScheduleRow, verdicts: Verdicts) -> None:
    again = held.entry.lapsed
    skips, due_at = _decide_again(held, schedule) if again else _decide_at(held.claimed_at, held, schedule)
    skipped = [Outcome(held.build_skipped_run(schedule, skip), schedule) for skip in skips]
    for outcome in skipped[1:]:
        outcome.owner = skipped[0]
    if due_at is None:
        held.outcome, held.beside = skipped[0], [*skipped[1:], *held.beside]
        verdicts.decided.append(held)
        return
    run = RunRow.build_for(schedule, due_at, fence=held.fence, claimed_at=held.claimed_at, worker=held.worker)
    held.outcome = Outcome(run, schedule)
    if skipped:  # see Note [One claim skips and runs]
        held.outcome.owner, held.beside = skipped[0], skipped
    if again:
        run.status = Status.RUNNING
        _judge_again(held, verdicts)
    elif schedule.overlap == Schedule.Overlap.ALLOW:
        run.status, run.separate, run.fence, run.claimed_at, run.worker = Status.QUEUED, True, "", None, ""
        verdicts.decided.append(held)
    else:
        _prepare(held, get_task(schedule.task), schedule.timeout)
        verdicts.start.append(held)


def _decide_again(held: Lease, schedule: ScheduleRow) -> tuple[list[Skip], datetime | None]:
    """Return the skipped stretches and the point to run, if any. See Note [One claim skips and runs]."""
    point, lapsed_ms = held.point, held.entry.lapsed_ms
    if lapsed_ms is None or point <= schedule.effective_from or schedule.overlap == Schedule.Overlap.ALLOW:
        return [], point
    skips, due_at = _decide_at(min(from_ms(lapsed_ms), held.claimed_at), held, schedule)
    if due_at is not None:
        return skips, due_at
    return _decide_at(held.claimed_at, held, schedule)


def _decide_at(now: datetime, held: Lease, schedule: ScheduleRow) -> tuple[list[Skip], datetime | None]:
    point, state = held.point, schedule.state
    rule, base = schedule.get_rule_and_base(state)
    old = point <= schedule.effective_from
    if old:  # a point of the old definition: the new rule must yield no points before the edit
        rule = Windowed(rule, start=base + timedelta(microseconds=1))
    skips, due_at = decide_all(rule, point, now, state.busy_from, state.last_finished_at, schedule.policies)
    if skips and old:  # anything more would include the points that the edit left
        return [replace(skips[0], last=point, points=1)], None
    if due_at is not None and due_at.microsecond % 1000:
        due_at = from_ms(to_ms(due_at))
    return skips, due_at


def _judge_again(held: Lease, verdicts: Verdicts) -> None:
    """Judge a retry, or a point whose last holder may have died: run it if it is within the catch-up window."""
    run, schedule = held.outcome.run, held.outcome.schedule
    assert schedule is not None  # noqa: S101 - it is not a job
    if is_too_old(run.due_at, held.claimed_at, schedule.policies):
        held.close(run, Status.FAILED if run.status == Status.RETRYING else Status.LOST, "catch_up_window")
        verdicts.decided.append(held)
    elif (delay_ms := held.get_backoff_left_ms(run, schedule)) > 0:
        verdicts.settle.append(held.wait("retry", delay_ms))
    else:
        _prepare(held, get_task(schedule.task), schedule.timeout)
        verdicts.suspects.append(held)


def _prepare(held: Lease, task: AnyTask, timeout: timedelta | None) -> None:
    run = held.outcome.run
    held.task, held.limit = task, None if timeout is None else max(0.0, timeout.total_seconds())
    # A `running` row was never concluded, so it counts.
    held.take_overs = run.reclaims + (run.status == Status.RUNNING)


Announce = Callable[[Outcome], None]
#: Fields that are restored if the execution recorded in the row did not begin.
_RESTORED = (
    "status", "reclaims", "fence", "worker", "started_at", "finished_at", "reason", "error", "attempts", "unique_key",
)  # fmt: skip


def take_over(held: Lease, *, poison: bool) -> None:
    """Fill in the row as running under this lease, or as lost(poison). See Note [Take-overs write first]."""
    run = held.outcome.run
    held.before = {name: getattr(run, name) for name in _RESTORED}
    if not run.pk:  # it then records an earlier worker, of which only the claim time is known
        held.before |= {"worker": "", "started_at": held.lapsed_at}
    ledger.keep_former(run, held.lapsed_at)
    run.reclaims = held.take_overs
    if not is_key_kept(run):
        run.unique_key = None
    run.fence, run.worker = held.fence, held.worker
    run.claimed_at = run.claimed_at or held.claimed_at
    if poison:
        run.status, run.reason, run.finished_at = Status.LOST, "poison", held.claimed_at
        if run.is_job:
            run.error = f"The workers that executed it died, {run.reclaims} times in a row."
            held.close_job()
    else:
        run.status, run.started_at = Status.RUNNING, held.claimed_at
        run.finished_at, run.reason, run.error = None, "", ""


def write_running(starting: Sequence[tuple[Lease, Outcome]], announce: Announce) -> list[Won]:
    """Write the `running` rows with the points skipped for them (rule R9). Raises DatabaseError if it wrote nothing."""
    skipped = [item for held, outcome in starting if outcome.owner for item in held.beside]
    won = ledger.start([*(outcome for _, outcome in starting), *skipped])
    for outcome, result in zip(skipped, won[len(starting) :], strict=True):
        if result is Won.YES:
            announce(outcome)
    for (held, outcome), result in zip(starting, won, strict=False):
        if result is Won.YES and outcome.owner is not None:
            outcome.owner, held.beside = None, []
    return won[: len(starting)]


def show(batch: Sequence[Lease], announce: Announce) -> list[Lease] | None:
    """Write that these run. Returns the entries that must get no row, None if all have one. Raises django.db.Error."""
    fresh = [held for held in batch if held.outcome.seen is None or held.outcome.seen[0] == Status.QUEUED]
    if not fresh:
        return None
    shown = [(held, _build_running(held, held.outcome)) for held in fresh]
    refused = []
    for (held, row), result in zip(shown, write_running(shown, announce), strict=True):
        outcome = held.outcome
        if result is Won.YES:
            outcome.run.pk, outcome.seen, outcome.owner = row.run.pk, get_version(row.run), row.owner
        elif result is not Won.LOCKED:
            refused.append(held)
    return refused


def _build_running(held: Lease, outcome: Outcome) -> Outcome:
    """Return a running row as a copy: the task's thread fills in the original. See Note [Long executions are shown]."""
    run = copy.copy(outcome.run)
    run.status, run.attempt, run.started_at = Status.RUNNING, 0, run.started_at or held.claimed_at
    run.reason, run.error, run.result, run.finished_at, run.expires_at = "", "", None, None, None
    run.unique_key = run.options["unique_key"] if run.options and is_key_kept(run) else None
    return Outcome(run, outcome.schedule, outcome.seen, owner=outcome.owner, job=outcome.job)
