"""Jobs of the database that have ended: dead ones listed, counted, revived, deleted, succeeded ones listed.

Never touches Redis.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL

from ..fields import utcnow
from ..models import Job, JobStatus
from ..timing.point import EPOCH
from .jobs import _jobs
from .reading import count_up_to

#: When a job ended, and its primary key: jobs are listed in this order, backwards.
EndKey = tuple[datetime, int]
#: As in the index of jobs that succeeded, see `reading._OPEN`.
_SUCCEEDED = RawSQL(  # noqa: S611 - no value of anybody's is in it
    f"{Job._meta.db_table}.status = 'SUCCESSFUL'", [], output_field=BooleanField()
)


def _dead(queue: str) -> QuerySet[Job]:
    """Return the dead jobs of a queue, what died last first.

    A bound, not `is not null`: that is what SQLite finds an index by. The order keeps PostgreSQL from going through the
    table for the first few of them.
    """
    return _jobs().filter(queue=queue, died_at__gte=EPOCH).order_by("-died_at", "-pk")


def _succeeded(queue: str) -> QuerySet[Job]:
    """Return the jobs of a queue that succeeded, what ended last first."""
    return _jobs().filter(_SUCCEEDED, queue=queue).order_by("-finished_at", "-pk")


def _listed(queue: str, after: EndKey | None, *, dead: bool) -> QuerySet[Job, Any]:
    name = "died_at" if dead else "finished_at"
    rows = (_dead(queue) if dead else _succeeded(queue)).filter(expires_at__gt=utcnow())
    if after is not None:
        at, pk = after
        rows = rows.filter(Q(**{f"{name}__lt": at}) | Q(pk__lt=pk), **{f"{name}__lte": at})
    return rows.values_list(name, "pk")


def end_keys(queues: Sequence[str], size: int, *, dead: bool, after: EndKey | None = None) -> list[EndKey]:
    """Return the keys of up to `size` jobs of these queues that are dead, or succeeded, that come after this one.

    What ended last comes first. One query per queue, each on an index, whatever the number of jobs and however far
    behind.
    """
    keys: list[EndKey] = []
    for queue in queues:
        keys += [(at, pk) for at, pk in _listed(queue, after, dead=dead)[:size] if at is not None]
    return sorted(keys, reverse=True)[:size]


def load_ended(pks: Sequence[int], *, dead: bool) -> dict[int, Job]:
    """Return those of these jobs that are still dead, or succeeded, by primary key."""
    still = Q(died_at__gte=EPOCH) if dead else Q(status=JobStatus.SUCCESSFUL)
    return {row.pk: row for row in _jobs().filter(still, pk__in=pks)} if pks else {}


def count_dead_each(queues: Sequence[str], most: int) -> dict[str, int]:
    """Count the dead jobs of each of these queues, up to `most`, in one query.

    Those that have expired count until they are deleted.
    """
    return dict(zip(queues, count_up_to(most - 1, *map(_dead, queues)), strict=True)) if queues else {}


def count_dead(queues: Sequence[str], most: int) -> int:
    """Count the dead jobs of these queues together, up to `most`, as `count_dead_each` does."""
    return min(most, sum(count_dead_each(queues, most).values()))


def _as_read(job: Job) -> QuerySet[Job]:
    return _jobs(job._state.db).filter(pk=job.pk, died_at=job.died_at, fence=job.fence)


def revive_job(job: Job, *, unique: str, now: datetime, state: str = "") -> bool:
    """Let a dead job wait again, as it was enqueued but for its state, if it stands as it was read.

    Its fence stays: so no outcome of an attempt from before its death is taken for one of the new attempts.

    Raises:
        IntegrityError: Another job that waits has this unique key. Nothing was written.
    """
    with transaction.atomic(using=job._state.db):
        return bool(
            _as_read(job).update(
                status=JobStatus.READY, attempt=0, reclaims=0, unique=unique, mirrored=False, state=state,
                wakes_at=now, finished_at=None, died_at=None, expires_at=None,
            )
        )  # fmt: skip


def delete_job(job: Job) -> bool:
    """Delete a dead job if it stands as it was read."""
    return bool(_as_read(job).delete()[0])
