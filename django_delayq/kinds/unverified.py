"""Jobs whose signature is not known here: handed back once, then dead. Never read, never executed.

Note [A strange signature]
Where the key of this process is the wrong one, or an old one during a deployment, other workers know the job's. So each
process hands a job back once; also one that is signed for another queue. Where it comes again, nobody has known it for
STRANGE_MS: then it is kept among the dead, as it is, where people see it, and can retry it once the key is right. It is
not handed back for ever: it would hold its unique key, and thousands of them would keep the workers busy.
What has no text or not the name of a job is nothing to keep; what stands in the database a sweep sends anew. Both are
dropped.
"""

import logging
from collections.abc import Iterable, Sequence

from django.db import DatabaseError, InterfaceError

from .. import ledger
from ..exceptions import ForgedJob
from ..jobs import is_member
from .base import Verdicts
from .held_job import HeldJob

logger = logging.getLogger("django_delayq.worker")

#: A job that is handed back comes back after so long.
STRANGE_MS = 30_000
#: So many jobs are remembered to have been handed back; what comes beyond that is dead at once.
REMEMBERED = 10_000


class Unverified:
    """Remembers what was handed back. Used by the loop's thread only."""

    def __init__(self) -> None:
        self._handed_back: set[str] = set()

    def judge(self, unverified: Sequence[tuple[HeldJob, ForgedJob]], verdicts: Verdicts[HeldJob]) -> None:
        """Decide about jobs of one shard. See Note [A strange signature]."""
        kept = {job.member for job, _ in unverified if job.entry.payload and is_member(job.member)}
        stored = _stored(kept)
        for job, error in unverified:
            if job.member not in kept or (stored and job.member in stored):
                logger.error("Dropped from %s: %s", job.shard, error)
                verdicts.settle.append(job.drop())
            elif stored is None or self._is_new(job):
                logger.warning("%s is handed back for workers that may have its key: %s", job.title, error)
                verdicts.back.append((job, STRANGE_MS))
            else:
                self._handed_back.discard(job.member)
                logger.error("%s is dead: no worker could verify it. Retry it when one can.", job.title)
                verdicts.settle.append(job.settle("dead", 0, job.entry.payload))

    def _is_new(self, job: HeldJob) -> bool:
        """Say whether the job was not handed back before, and is to be now."""
        if job.member in self._handed_back or len(self._handed_back) >= REMEMBERED:
            return False
        self._handed_back.add(job.member)
        return True


def _stored(members: Iterable[str]) -> set[str] | None:
    """Return which of these stand in the database, done or not; None where it cannot be asked now."""
    try:
        return set(ledger.load_jobs(members))
    except (DatabaseError, InterfaceError):
        return None
