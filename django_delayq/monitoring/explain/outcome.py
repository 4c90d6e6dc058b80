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
    Status.RUNNING: gettext_noop(
        "It is running, or its worker died; then another worker takes over when the lease ends."
    ),
    Status.RETRYING: gettext_noop("The last attempt failed. It is retried, up to %(most)d attempts."),
    (Status.SKIPPED, "overlap"): gettext_noop(
        "The schedule was still busy with an earlier run, and its overlap policy skips. To run "
        "it afterwards, set overlap to queue_one or queue_all; to run both at once, set allow; "
        "or make the interval longer than the task."
    ),
    (Status.SKIPPED, "missed"): gettext_noop(
        "No worker was free in time, or the queue or task was paused, and the policy for missed "
        "due times skips. To run every missed due time, set missed to all; to accept later "
        "starts, make grace longer."
    ),
    (Status.SKIPPED, "catch_up_window"): gettext_noop(
        "It was older than the catch-up window when a worker was free. To run older due times, "
        "make catch_up_window longer or empty."
    ),
    (Status.SKIPPED, "max_catch_up"): gettext_noop(
        "More due times were missed than max_catch_up (%(most)d) permits; only the newest ran. "
        "To run more, increase it."
    ),
    (Status.SKIPPED, "edited"): gettext_noop(
        "The definition was changed before this started; only due times after the change count. "
        "To run it anyway, use “Run now”."
    ),
    (Status.SKIPPED, "paused"): gettext_noop(
        "The schedule was paused before this started. To run it anyway, use “Run now”."
    ),
    (Status.FAILED, "paused"): gettext_noop("The schedule was paused while this waited for its next attempt."),
    (Status.LOST, "paused"): gettext_noop(
        "Its worker died, and the schedule was paused before another worker took over."
    ),
    (Status.FAILED, "catch_up_window"): gettext_noop(
        "Its next attempt came after the catch-up window. Make catch_up_window longer or backoff shorter."
    ),
    (Status.LOST, "catch_up_window"): gettext_noop(
        "Its worker died, and the catch-up window had passed before another worker took over."
    ),
    (Status.LOST, "poison"): gettext_noop(
        "Each worker that ran it died or lost its lease, so it was given up after three "
        "take-overs. Check what kills the worker: memory, a crash in native code, or a task that "
        "blocks the process."
    ),
}


def format_instant(instant: datetime, zone: tzinfo) -> str:
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
    """Return a run's outcome, its figures, and why it did not succeed; `attempts` is the maximum number of attempts."""
    lines = [_format_headline(run, zone), *_format_figures(run, zone)]
    why = _explain_outcome(run, catch_up if run.status == Status.SKIPPED else attempts)
    if why:
        lines.append(redact_text(why))
    if run.error:
        lines.append(_("Error: %(error)s") % {"error": redact_text(run.error.strip().splitlines()[-1])[:500]})
    return lines


def _format_headline(run: Run, zone: tzinfo) -> str:
    values = {"due": format_instant(run.due_at, zone), "status": Status(run.status).label, "points": run.points}
    if run.last_due_at is not None:
        values["last"] = format_instant(run.last_due_at, zone)
        if not run.points:
            return _("%(due)s to %(last)s: %(status)s, an unknown number of due times in one row.") % values
        return _("%(due)s to %(last)s: %(status)s, %(points)d due times in one row.") % values
    if run.origin in (Origin.DUE, Origin.JOB):
        return _("%(due)s: %(status)s.") % values
    values["origin"] = Origin(run.origin).label
    return _("%(due)s: %(status)s (%(origin)s, started by a user).") % values


def _format_figures(run: Run, zone: tzinfo) -> list[str]:
    if run.status == Status.SKIPPED:
        return (
            []
            if run.claimed_at is None
            else [_("Decided at %(time)s.") % {"time": format_instant(run.claimed_at, zone)}]
        )
    parts = []
    if run.attempt:
        parts.append(ngettext("%(count)d attempt", "%(count)d attempts", run.attempt) % {"count": run.attempt})
    if run.latency is not None:
        parts.append(_("latency %(latency)s") % {"latency": format_span(run.latency)})
    if run.duration is not None:
        parts.append(_("took %(duration)s") % {"duration": format_span(run.duration)})
    if run.reclaims:
        text = ngettext("taken over %(count)d time", "taken over %(count)d times", run.reclaims)
        parts.append(text % {"count": run.reclaims})
    if run.worker:
        parts.append(_("worker %(worker)s") % {"worker": run.worker})
    return [", ".join(parts) + "."] if parts else []


def _explain_outcome(run: Run, most: int) -> str:
    status = Status(run.status)
    if status == Status.SUCCEEDED and run.reason == REASON_HANDED_OVER:
        found = run.result if isinstance(run.result, dict) else {}
        return _(
            "Handed over to the TASKS backend %(backend)s, which accepted it as result %(result)s. "
            "For its outcome, see that result, and check that workers of that backend run."
        ) % {"backend": found.get("backend"), "result": found.get("result_id")}
    sentence = WHY.get(status) or WHY.get((status, run.reason))
    if sentence is None:
        return run.reason
    return _(sentence) % {"queue": run.queue, "most": most}
