"""Rows that say `running`: of what somebody may have executed before, and of what has run for a while.

Note [Take-over]
Rule R2b. A lapsed lease, or a row of the ledger that is there already, means that somebody else may execute the point,
or may have done so. A process that was stopped for longer than its lease comes back and records; nothing tells it that
it is late. So the row is read under the lease (`judge.py`, Note [Read under the lease]), and then becomes `running`
under this worker's fence, by compare-and-set against what was read. From that moment on nobody who read the row before
can write it, and whoever recorded since the reading has changed the row, so that the compare-and-set fails. Without the
row a stale holder could still record while the next one executes. Only then the task is called.

Note [Shown while it runs]
A point's row is written with its outcome, and a durable job's row says nothing of its first execution until that ends.
People want to know what runs now, where and since when, and what a process that died was at. So what has run for
RUNNING_AFTER_SECONDS is written down as a take-over is, but without being counted: by the same compare-and-set, so that
the outcome is written over that row and over no other; and together with what is skipped for it (rule R9). Where
somebody else has decided meanwhile, or the database fails, the task goes on all the same: its outcome finds out.

Tells the log and the receivers of signals what becomes of due points. Writes nothing.
"""

import copy
import logging
from collections.abc import Sequence
from typing import Any

from django.dispatch import Signal

from .. import ledger
from ..handover import REASON as REASON_HANDED_OVER
from ..ledger import Outcome, Won, version_of
from ..models import Schedule, Status
from ..plain import iso
from ..redaction import redact_text
from ..rows import RunRow, ScheduleRow
from ..signals import run_finished, run_skipped
from .held_point import HeldPoint

#: What a row gets back where the execution that it tells of did not begin.
_RESTORED = (
    "status", "reclaims", "fence", "worker", "started_at", "finished_at", "reason", "error", "attempts",
)  # fmt: skip


def take_overs(run: RunRow) -> int:
    """Return how many take-overs there are with the one that would begin now. A `running` row was never concluded."""
    return run.reclaims + (run.status == Status.RUNNING)


def take_over(held: HeldPoint, *, poison: bool) -> None:
    """Fill in the row: it runs under this lease, or is lost(poison). See Note [Take-over]."""
    run = held.judged.run
    held.before = {name: getattr(run, name) for name in _RESTORED}
    if not run.pk:  # it is written for somebody of whom nothing else is known
        held.before |= {"worker": "", "started_at": held.lapsed_at}
    ledger.keep_former(run, held.lapsed_at)
    run.reclaims = held.take_overs
    run.fence, run.worker = held.fence, held.worker
    run.claimed_at = run.claimed_at or held.claimed_at
    if poison:
        run.status, run.reason, run.finished_at = Status.LOST, "poison", held.claimed_at
    else:
        run.status, run.started_at = Status.RUNNING, held.claimed_at
        run.finished_at, run.reason, run.error = None, "", ""


def write_running(starting: Sequence[tuple[HeldPoint, Outcome]]) -> list[Won]:
    """Write the `running` rows of these entries, with what is skipped for them (rule R9); return what became of each.

    Raises:
        DatabaseError: Nothing was written.
    """
    skipped = [item for held, outcome in starting if outcome.owner for item in held.beside]
    won = ledger.start([*(outcome for _, outcome in starting), *skipped])
    for outcome, result in zip(skipped, won[len(starting) :], strict=True):
        if result is Won.YES:
            announce(outcome)
    for (held, outcome), result in zip(starting, won, strict=False):
        if result is Won.YES and outcome.owner is not None:  # what is skipped for it stands
            outcome.owner, held.beside = None, []
    return won[: len(starting)]


def show(batch: Sequence[HeldPoint]) -> list[HeldPoint] | None:
    """See `Kind.show` and Note [Shown while it runs]: what is taken over or tried again has its row already."""
    fresh = [held for held in batch if held.judged.seen is None]
    if not fresh:
        return None
    shown = [(held, _running(held, held.judged)) for held in fresh]
    refused = []
    for (held, row), result in zip(shown, write_running(shown), strict=True):
        outcome = held.judged
        if result is Won.YES:
            outcome.run.pk, outcome.seen, outcome.owner = row.run.pk, version_of(row.run), row.owner
        elif result is not Won.LOCKED:
            refused.append(held)
    return refused


def _running(held: HeldPoint, outcome: Outcome) -> Outcome:
    """Return the row of a point while its task, in another thread, fills in what it will have become."""
    run = copy.copy(outcome.run)
    run.status, run.attempt, run.started_at = Status.RUNNING, 0, run.started_at or held.claimed_at
    run.reason, run.error, run.result, run.finished_at = "", "", None, None
    return Outcome(run, outcome.schedule, owner=outcome.owner)


logger = logging.getLogger("django_delayq.worker")

LEVELS = {
    Status.FAILED: logging.ERROR,
    Status.LOST: logging.ERROR,
    Status.RETRYING: logging.WARNING,
}


def announce(outcome: Outcome) -> None:
    """Log a recorded row and send its signal."""
    run = outcome.run
    if run.status == Status.QUEUED:
        return
    log_run(run)
    if run.status == Status.SKIPPED:
        send(run_skipped, run, outcome.schedule)
    elif not Status(run.status).is_open:
        send(run_finished, run, outcome.schedule)


def send(signal: Signal, run: RunRow, schedule: ScheduleRow) -> None:
    """Send one of the public signals of runs; instances are made where somebody receives it only."""
    if signal.has_listeners(Schedule):
        signal.send_robust(sender=Schedule, run=ledger.as_run(run), schedule=ledger.as_schedule(schedule))


def log_run(run: RunRow) -> None:
    """Log what became of a due point."""
    level = LEVELS.get(Status(run.status), logging.INFO)
    if not logger.isEnabledFor(level):
        return
    event = run_event(run)
    logger.log(level, _line(event), extra={"delayq": event})


def run_event(run: RunRow) -> dict[str, Any]:
    """Return an outcome as flat JSON values; instants in ISO 8601 UTC, durations in ms."""
    event: dict[str, Any] = {
        "event": str(run.status),
        "schedule": run.schedule_name,
        "task": run.task,
        "queue": run.queue,
        "origin": str(run.origin),
        "due_at": iso(run.due_at),
    }
    if run.lag is not None:
        event["lag_ms"] = round(run.lag.total_seconds() * 1000)
    if run.started_at is not None and run.duration is not None:
        event["duration_ms"] = round(run.duration.total_seconds() * 1000, 1)
    if run.attempt > 1 or run.status == Status.RETRYING:
        event["attempt"] = run.attempt
    if run.points != 1:
        event["points"] = run.points
    if run.last_due_at is not None:
        event["last_due_at"] = iso(run.last_due_at)
    if run.reason:
        event["reason"] = redact_text(run.reason)
    if run.reason == REASON_HANDED_OVER and isinstance(run.result, dict):
        event["backend"], event["result_id"] = run.result.get("backend"), run.result.get("result_id")
    if run.error:
        event["traceback"] = redact_text(run.error)
    return event


def _line(event: dict[str, Any]) -> str:
    parts = [f"{event['event']:<9} {event['schedule']}", f"due {event['due_at'][:19].replace('T', ' ')}"]
    if "last_due_at" in event:
        parts.append(f"to {event['last_due_at'][:19].replace('T', ' ')}")
    if "points" in event:
        parts.append(f"points {event['points'] or 'not known'}")
    if event["origin"] != "due":
        parts.append(event["origin"])
    if "lag_ms" in event:
        parts.append(f"lag {event['lag_ms']} ms")
    if "duration_ms" in event:
        parts.append(f"took {event['duration_ms']:g} ms")
    if "attempt" in event:
        parts.append(f"attempt {event['attempt']}")
    if "backend" in event:
        parts.append(f"handed over to {event['backend']} as {event['result_id']}")
    elif "reason" in event:
        parts.append(f"({event['reason']})")
    return "  ".join(parts).replace("\n", " ")
