"""Durable jobs that are dead: listed, counted, revived, deleted. Never touches Redis."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Q, QuerySet

from ..fields import utcnow
from ..models import Job, JobStatus
from ..timing.point import EPOCH
from .jobs import _jobs

#: When a dead job died, and its primary key: jobs are listed in this order, backwards.
DeadKey = tuple[datetime, int]


def _dead(queue: str) -> QuerySet[Job]:
    """Return the dead jobs of a queue, what died last first.

    A bound, not `is not null`: that is what SQLite finds an index by. The order keeps PostgreSQL from going through the
    table for the first few of them.
    """
    return _jobs().filter(queue=queue, died_at__gte=EPOCH).order_by("-died_at", "-pk")


def _listed(queue: str, after: DeadKey | None) -> QuerySet[Job]:
    rows = _dead(queue).filter(expires_at__gt=utcnow())
    if after is not None:
        died_at, pk = after
        rows = rows.filter(Q(died_at__lt=died_at) | Q(pk__lt=pk), died_at__lte=died_at)
    return rows


def dead_keys(queues: Sequence[str], size: int, *, after: DeadKey | None = None) -> list[DeadKey]:
    """Return the keys of up to `size` dead jobs of these queues, what died last first, that come after this one.

    One query per queue, each on an index, whatever the number of jobs and however far behind.
    """
    keys: list[DeadKey] = []
    for queue in queues:
        rows = _listed(queue, after).values_list("died_at", "pk")[:size]
        keys += [(died_at, pk) for died_at, pk in rows if died_at is not None]
    return sorted(keys, reverse=True)[:size]


def load_dead(pks: Sequence[int]) -> dict[int, Job]:
    """Return those of these jobs that are still dead, by primary key."""
    return {row.pk: row for row in _jobs().filter(pk__in=pks, died_at__gte=EPOCH)} if pks else {}


def count_dead(queues: Sequence[str], most: int) -> int:
    """Count the dead jobs of these queues, up to about `most`. Those that have expired count until they are deleted."""
    total = 0
    for queue in queues:
        if total < most:
            total += _dead(queue).values("pk")[: most - total].count()
    return total


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
