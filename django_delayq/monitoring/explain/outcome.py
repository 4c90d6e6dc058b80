"""Describes a row of the ledger: what happened, why, and what to change. Reads neither database nor Redis."""

from datetime import datetime, timedelta, tzinfo

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from ...calls.handover import REASON as REASON_HANDED_OVER
from ...models import Origin, Run, Status
from ...text import redact_text

#: Why a run has not succeeded and what to change, by status or by status and reason.
WHY: dict[Status | tuple[Status, str], str] = {
    Status.QUEUED: gettext_noop("It waits in queue %(queue)s for a worker."),
    Status.RUNNING: gettext_noop("It runs now, or its worker died; then another takes over when the lease ends."),
    Status.RETRYING: gettext_noop("The last attempt failed; it is tried again, %(most)d times in all."),
    (Status.SKIPPED, "overlap"): gettext_noop(
        "The schedule was still busy with an earlier run when it came due, and the policy for overlap skips then. "
        "To run it afterwards set overlap to queue_one or queue_all, to run it beside the other to allow; or make "
        "the interval longer than the task takes."
    ),
    (Status.SKIPPED, "missed"): gettext_noop(
        "No worker took it in time: none was alive or free, or somebody had paused its queue or task. The policy for "
        "missed points leaves such a one out. To run every missed point set missed to all; to take a late one for "
        "punctual make grace longer."
    ),
    (Status.SKIPPED, "catch_up_window"): gettext_noop(
        "It was older than the catch-up window when a worker came. To run older points make catch_up_window longer "
        "or leave it empty."
    ),
    (Status.SKIPPED, "max_catch_up"): gettext_noop(
        "More points were missed than max_catch_up (%(most)d) allows; only the newest of them ran. To run more, "
        "raise it."
    ),
    (Status.SKIPPED, "edited"): gettext_noop(
        "The definition was changed before this was decided; only points after the change count. Nothing is to be "
        "changed; run now makes up for it."
    ),
    (Status.SKIPPED, "paused"): gettext_noop("The schedule was paused before this started. Run now makes up for it."),
    (Status.FAILED, "paused"): gettext_noop("The schedule was paused while this waited for its next attempt."),
    (Status.LOST, "paused"): gettext_noop("Its worker vanished, and the schedule was paused before another took over."),
    (Status.FAILED, "catch_up_window"): gettext_noop(
        "Its next attempt came after the catch-up window. Make catch_up_window longer or backoff shorter."
    ),
    (Status.LOST, "catch_up_window"): gettext_noop(
        "Its worker vanished, and the catch-up window had passed before another took over."
    ),
    (Status.LOST, "poison"): gettext_noop(
        "Every worker that ran it died or lost its lease, so it was given up after three take-overs. Look for what "
        "kills the worker: memory, a crash in native code, a task that blocks the whole process."
    ),
}


def format_instant(instant: datetime, zone: tzinfo) -> str:
    """Format an instant in the schedule's zone, with milliseconds if there are any."""
    local = instant.astimezone(zone)
    millis = f".{local.microsecond // 1000:03}" if local.microsecond else ""
    return f"{local:%Y-%m-%d %H:%M:%S}{millis} {local:%Z}"


def format_span(value: timedelta) -> str:
    """Format a duration as "12 ms", "4.21 s" or "1:05:00"."""
    seconds = value.total_seconds()
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if abs(seconds) < 60 else str(timedelta(seconds=round(seconds)))


def describe_run(run: Run, zone: tzinfo, *, attempts: int, catch_up: int = 0) -> list[str]:
    """Return a run's outcome, its figures, and why it did not succeed.

    `attempts` is the maximum number of attempts, `catch_up` the schedule's `max_catch_up`.
    """
    lines = [_headline(run, zone), *_figures(run, zone)]
    why = _why(run, catch_up if run.status == Status.SKIPPED else attempts)
    if why:
        lines.append(redact_text(why))
    if run.error:
        lines.append(_("Error: %(error)s") % {"error": redact_text(run.error.strip().splitlines()[-1])[:500]})
    return lines


def _headline(run: Run, zone: tzinfo) -> str:
    values = {"due": format_instant(run.due_at, zone), "status": Status(run.status).label, "points": run.points}
    if run.last_due_at is not None:
        values["last"] = format_instant(run.last_due_at, zone)
        if not run.points:
            return _("%(due)s to %(last)s: %(status)s, an unknown number of points in one row.") % values
        return _("%(due)s to %(last)s: %(status)s, %(points)d points in one row.") % values
    if run.origin in (Origin.DUE, Origin.JOB):
        return _("%(due)s: %(status)s.") % values
    values["origin"] = Origin(run.origin).label
    return _("%(due)s: %(status)s (%(origin)s: ordered by a person).") % values


def _figures(run: Run, zone: tzinfo) -> list[str]:
    if run.status == Status.SKIPPED:
        return (
            []
            if run.claimed_at is None
            else [_("Decided at %(time)s.") % {"time": format_instant(run.claimed_at, zone)}]
        )
    parts = []
    if run.attempt:
        parts.append(ngettext("%(count)d attempt", "%(count)d attempts", run.attempt) % {"count": run.attempt})
    if run.lag is not None:
        parts.append(_("lag %(lag)s") % {"lag": format_span(run.lag)})
    if run.duration is not None:
        parts.append(_("took %(duration)s") % {"duration": format_span(run.duration)})
    if run.reclaims:
        text = ngettext("taken over %(count)d time", "taken over %(count)d times", run.reclaims)
        parts.append(text % {"count": run.reclaims})
    if run.worker:
        parts.append(_("worker %(worker)s") % {"worker": run.worker})
    return [", ".join(parts) + "."] if parts else []


def _why(run: Run, most: int) -> str:
    status = Status(run.status)
    if status == Status.SUCCEEDED and run.reason == REASON_HANDED_OVER:
        found = run.result if isinstance(run.result, dict) else {}
        return _(
            "Handed over to the TASKS backend %(backend)s, which accepted it as result %(result)s. What became of it "
            "is told there: look at that result, and whether workers of that backend run."
        ) % {"backend": found.get("backend"), "result": found.get("result_id")}
    sentence = WHY.get(status) or WHY.get((status, run.reason))
    if sentence is None:
        return run.reason
    return _(sentence) % {"queue": run.queue, "most": most}
