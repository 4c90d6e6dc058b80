"""Rows of what follows an outcome: jobs of `on_success` and `on_failure`, written with it. Never touches Redis."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from ..fields import utcnow
from ..jobs import Callback, after_run
from ..jobs.aliases import alias_of_rows
from ..models import Job, Status
from .outcome import Outcome, Won

logger = logging.getLogger("django_delayq.worker")

#: What is called of a schedule after an outcome; after all others nothing is.
_AFTER: dict[str, str] = {Status.SUCCEEDED: "on_success", Status.FAILED: "on_failure", Status.LOST: "on_failure"}


def call_back(outcomes: Sequence[Outcome], written: Sequence[Won], using: str) -> None:
    """Insert what follows the runs that were won, within their transaction, and note it in their outcomes."""
    for outcome, got in zip(outcomes, written, strict=True):
        outcome.callback = _of_run(outcome) if got is Won.YES else None
    add_callbacks([outcome.callback for outcome in outcomes if outcome.callback is not None], using)


def call_back_stored(fences: Mapping[str, str], callbacks: Mapping[str, Callback], using: str) -> None:
    """Insert what follows jobs, by member, where the results that stand are those of these fences."""
    found = Job._base_manager.using(using).filter(member__in=list(callbacks)).values_list("member", "fence")
    add_callbacks([callbacks[member] for member, fence in found if fence == fences[member]], using)


def _of_run(outcome: Outcome) -> Callback | None:
    """Return what follows a run that was won just now, None where nothing does."""
    run, schedule = outcome.run, outcome.schedule
    path: str = getattr(schedule, _AFTER.get(run.status, ""), "")
    if not path or outcome.repeated:
        return None
    alias = alias_of_rows()
    if not alias:
        logger.error("%s calls back %s, but TASKS has no alias of django_delayq: it is not.", run.schedule_name, path)
        return None
    return after_run(path, [run.pk, run.due_at.isoformat()], run.queue, alias)


def add_callbacks(callbacks: Iterable[Callback], using: str) -> None:
    """Insert rows, within the transaction that writes their outcomes. One that is there already stays as it is."""
    now = utcnow()
    rows = [
        Job(
            member=item.member,
            queue=item.queue,
            backend=item.call.backend,
            task=item.call.task[:255],
            priority=item.call.priority,
            wakes_at=now,
            enqueued_at=now,
            call=item.line,
        )
        for item in callbacks
    ]
    if rows:
        Job._base_manager.using(using).bulk_create(rows, ignore_conflicts=True)
