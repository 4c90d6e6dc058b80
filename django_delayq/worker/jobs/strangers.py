"""Jobs whose signature is not known here: handed back once, then dead. Never read, never executed.

Note [A strange signature]
Where the key of this process is the wrong one, or an old one during a deployment, other workers know the job's. So each
process hands a job back once. Where it comes again, nobody has known it for STRANGE_MS: then it is kept among the dead,
as it is, where people see it, and can retry it once the key is right. It is not handed back for ever: it would hold its
unique key, and thousands of them would keep the workers busy.
What has no text or not the name of a job is nothing to keep, and what stands in the database is sent again by a sweep.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from ...broker import JobSettlement
from ...exceptions import ForgedJob
from ...jobs import is_member
from .entry import FinishedJob, HeldJob
from .rows import JobRows

logger = logging.getLogger("django_delayq.worker")

#: A job that is handed back comes back after so long.
STRANGE_MS = 30_000
#: So many jobs are remembered to have been handed back; what comes beyond that is dead at once.
REMEMBERED = 10_000


class Strangers:
    """Used by the loop's thread only."""

    def __init__(
        self,
        rows: JobRows,
        *,
        drop: Callable[[HeldJob], None],
        release: Callable[[Iterable[HeldJob], int], None],
        end: Callable[[FinishedJob], None],
    ) -> None:
        """`drop` and `release` as in `JobRows`; `end` takes what is to be settled."""
        self._rows, self._drop, self._release, self._end = rows, drop, release, end
        self._handed_back: set[str] = set()

    def take(self, strangers: Sequence[tuple[HeldJob, ForgedJob]]) -> None:
        """Set jobs that were claimed in one place on their way. See Note [A strange signature]."""
        first, again = [], []
        for job, error in strangers:
            if not job.entry.payload or not is_member(job.member):
                logger.error("Dropped from %s: %s", job.place, error)
                self._drop(job)
            elif job.member in self._handed_back or len(self._handed_back) >= REMEMBERED:
                again.append(job)
            else:
                logger.warning("%s is handed back for workers that may have its key: %s", job.title, error)
                self._handed_back.add(job.member)
                first.append(job)
        if again:
            first += self._bury(again)
        if first:
            self._release(first, STRANGE_MS)

    def _bury(self, jobs: Sequence[HeldJob]) -> list[HeldJob]:
        """Keep these among the dead, if they do not stand in the database; return them where that cannot be asked."""
        stored = self._rows.stored([job.member for job in jobs])
        if stored is None:
            return list(jobs)
        for job in jobs:
            self._handed_back.discard(job.member)
            if job.member in stored:
                logger.warning("%s is not signed with a key that is known here; it is sent again.", job.title)
                self._drop(job)
            else:
                logger.error("%s is dead: no worker has had its key. Retry it when one has.", job.title)
                payload = job.entry.payload
                self._end(FinishedJob(job, 0.0, JobSettlement(job.member, job.fence, "dead", 0, payload)))
        return []
