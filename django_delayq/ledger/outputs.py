"""What executions have said: written with their outcomes, read for a page, swept."""

from collections.abc import Collection, Sequence

from django.db import DatabaseError, connections, transaction
from django.db.models import Exists, OuterRef

from ..models import Output, Run
from ..side_channels import note_failure
from .attempts import attempts_of
from .bulk import database, writing
from .jobs import find_expired
from .locks import leave_locked
from .outcome import Outcome


def run_output(outcome: Outcome) -> Output:
    """Return the unsaved row of what the last attempt at a run has said."""
    return Output(run_id=outcome.run.pk, attempt=attempts_of(outcome.run)[-1].number, text=outcome.output)


def keep_outputs(outputs: Sequence[Output], using: str) -> None:
    """Insert outputs in the transaction of their outcomes. If they are refused, the outcomes are still written.

    An output that an earlier call has committed without a reply is not inserted again.

    Raises:
        DatabaseError: The whole transaction is lost.
    """
    if not outputs:
        return
    try:
        with transaction.atomic(using=using):
            Output._base_manager.using(using).bulk_create(outputs, ignore_conflicts=True)
    except DatabaseError as error:
        if connections[using].needs_rollback or connections[using].closed_in_transaction:
            raise
        note_failure("The table of outputs", error)


def delete_with_outputs(pks: Collection[int], using: str) -> None:
    """Delete runs, and what they have said, in a statement each: Django's cascade takes three times as long."""
    Output._base_manager.using(using).filter(run__in=pks).delete()
    Run._base_manager.using(using).filter(pk__in=pks)._raw_delete(using)


def delete_job(job: Run) -> bool:
    """Delete a job that has ended, and what it has said, if it stands as it was read."""
    using = job._state.db or database()
    rows = Run._base_manager.using(using).filter(pk=job.pk, status=job.status, attempt=job.attempt, fence=job.fence)
    with transaction.atomic(using=using):
        gone = bool(rows._raw_delete(using))
        if gone:
            Output._base_manager.using(using).filter(run=job.pk).delete()
    return gone


def prune_outputs(limit: int) -> int:
    """Delete those of the oldest so many rows whose runs are gone past Django's deletions; return how many.

    Whoever drops a partition, or deletes by SQL, begins with the oldest too.
    """
    outputs = Output._base_manager.using(database())
    oldest = list(outputs.order_by("pk").values_list("pk", flat=True)[:limit])
    has_run = Exists(Run._base_manager.filter(pk=OuterRef("run_id")))
    return outputs.filter(~has_run, pk__in=oldest).delete()[0] if oldest else 0


def prune_expired(limit: int) -> int:
    """Delete up to so many jobs whose time is over and that no transaction has locked; return how many."""
    using, pks = database(), set(find_expired(limit))
    if pks:
        with writing(using):
            free = pks - leave_locked(Run, pks, using)
            pks = free.intersection(find_expired(limit))  # one may have been retried meanwhile
            delete_with_outputs(pks, using)
    return len(pks)
