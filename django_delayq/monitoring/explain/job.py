"""Explains one job: why it waits, where it runs, or how it ended. Changes nothing."""

from collections.abc import Iterator
from datetime import datetime, tzinfo

from django.utils.translation import gettext as _

from ... import conf, ledger
from ...calls import handover, parse_id
from ...calls.call import backend_of
from ...exceptions import UnknownTask
from ...ledger import chain
from ...models import Origin, Run, Status, explain_wait
from ...recurrence.zone import get_zone
from .entry import Entry
from .outcome import describe_run, shown
from .standing import holding_up, slowing


def find_job(text: str) -> Run | None:
    """Return the job with a result id or a primary key; None if there is none."""
    parsed = parse_id(text)
    if parsed is not None:
        return ledger.find_job(*parsed)
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        return None
    return Run.objects.using(ledger.database()).filter(pk=int(text), origin=Origin.JOB).first()


def explain_job(job: Run, now: datetime) -> list[str]:
    """Explain why a job waits, where it runs, or how it ended."""
    zone = get_zone(conf.project_timezone())
    values = {"task": job.task, "pk": job.pk, "queue": job.queue, "backend": job.backend}
    values["time"] = shown(job.created_at, zone)
    lines = [
        _("%(task)s: job %(pk)d, enqueued at %(time)s in queue %(queue)s by the TASKS alias %(backend)s.") % values,
        *describe_run(job, zone, attempts=_attempts(job)),
    ]
    if not Status(job.status).is_open:
        if job.expires_at is not None:
            lines.append(_("Its row is kept until %(time)s.") % {"time": shown(job.expires_at, zone)})
        return lines
    entry, held = Entry(chain.member_of_run(job), job.queue), ledger.held_back()
    lines += _notes(job, now, zone)
    lines += holding_up(job.queue, job.task, held)
    waits = explain_wait(held, (job.queue, job.task))
    worker = job.worker if job.status == Status.RUNNING else ""
    lines += entry.describe(chain.generation_of_run(job), now, zone, waits=waits, worker=worker)
    lines += slowing(job.queue, held)
    return lines


def _notes(job: Run, now: datetime, zone: tzinfo) -> Iterator[str]:
    if job.status == Status.QUEUED and job.due_at > now:
        yield _("It starts at %(time)s at the earliest.") % {"time": shown(job.due_at, zone)}
    if job.status == Status.RUNNING and job.started_at is not None:
        yield _("It was started at %(time)s.") % {"time": shown(job.started_at, zone)}
    if job.backend not in handover.backends():
        yield _("TASKS has no alias %(backend)s here; only workers that have it run the job.") % {
            "backend": job.backend
        }
    if job.unique_key is not None and (job.options or {}).get("unique_until") == "end":
        yield _("It has its unique key until it has ended; until then another one with that key is not enqueued.")
    elif job.unique_key is not None:
        yield _("It has its unique key until it starts; until then another one with that key is not enqueued.")


def _attempts(job: Run) -> int:
    """Return the maximum number of attempts: from the job, else from its TASKS alias in this process."""
    said = (job.options or {}).get("max_attempts")
    if said is None:
        try:
            said = backend_of(job.backend).settings.retries_of(job.task).max_attempts
        except UnknownTask:
            said = None
    return int(said or 1)
