"""Finished jobs out of Redis, with their results. Keeps what a failing server did not take.

Note [One list of dead jobs]
The dead jobs of a queue are in one list, whatever their alias, so that they can be shown in the order of their deaths.
Where aliases say different things of how long and how many are kept, the largest counts for all: what one of them wants
to keep another one's failure must not delete. A system check tells of it.
"""

import logging
import math
from collections.abc import Sequence

from ...broker import JobBroker, Place
from ...jobs import Options
from ...jobs.aliases import keepers_of
from ...models import Job
from ..leases import LeaseKeeper
from ..locked import Locked
from ..recorder import Due, write_all
from . import rows
from .entry import FinishedJob

logger = logging.getLogger("django_delayq.worker")

#: Where no backend is known of what is settled, none of the dead jobs is forgotten for it.
FOR_EVER = 10**12


class JobRecorder:
    """Settles in batches. What could not be settled stays here, under its renewed lease, for the next call."""

    def __init__(self, jobs: JobBroker, keeper: LeaseKeeper, *, due_in_ms: Due) -> None:
        """`due_in_ms` is told when a job that is to be tried again comes due."""
        self.jobs, self.keeper = jobs, keeper
        self._due_in_ms = due_in_ms
        self._unsettled: dict[Place, list[FinishedJob]] = {}
        self.unrecorded: list[FinishedJob] = []
        self.locked: Locked[FinishedJob] = Locked(Job, most=jobs.broker.config.batch_size)
        self.runs = 0

    @property
    def idle(self) -> bool:
        """True while nothing waits to be settled."""
        return self.again == math.inf

    @property
    def again(self) -> float:
        """The monotonic second from which on `flush` has something to do: 0 for now, infinite for nothing at all."""
        return 0.0 if self._unsettled or self.unrecorded else self.locked.until

    def add(self, finished: FinishedJob) -> None:
        """Take a finished job, to be settled by `flush`; one that never started is let go."""
        if finished.settlement is None:
            self.keeper.discard([finished.held])
        elif finished.held.stored:
            self.unrecorded.append(finished)
        else:
            self._unsettled.setdefault(finished.held.place, []).append(finished)

    def flush(self) -> None:
        """Write what belongs into the database, then settle everything that is here.

        Raises:
            django.db.Error: What was not written is kept; the rest is settled. See `..recorder`, Note [Whose fault].
            BrokerError: What was not settled is kept.
        """
        self.unrecorded += self.locked.take()
        try:
            write_all(self.unrecorded, self.jobs.broker.config.batch_size, self._record, self.keeper)
        finally:
            self._settle_all()

    def _record(self, batch: Sequence[FinishedJob]) -> None:
        settling, locked = rows.record(batch)
        for item in settling:
            self._unsettled.setdefault(item.held.place, []).append(item)
        if locked:
            self.locked.keep(locked)
        self.keeper.discard({item.held for item in batch} - {item.held for item in (*settling, *locked)})

    def _settle_all(self) -> None:
        size = self.jobs.broker.config.batch_size
        for place in list(self._unsettled):
            items = self._unsettled[place]
            while items:
                self._settle(place, items[:size])
                del items[:size]
            del self._unsettled[place]

    def _settle(self, place: Place, part: list[FinishedJob]) -> None:
        settlements = [item.settlement for item in part if item.settlement is not None]
        dead_seconds, dead_most = _kept_dead(place.queue, part)
        with self.keeper.letting_go(item.held for item in part):
            kept = self.jobs.settle(
                place,
                settlements,
                dead_ms=int(dead_seconds * 1000),
                dead_most=dead_most,
            )
        self.runs += sum(item.executed for item in part)
        for item, applied in zip(part, kept, strict=True):
            if not applied:
                logger.warning("%s was finished by another worker.", item.held.title)
        delays = [item.ms for item in settlements if item.what == "retry"]
        if delays:
            self._due_in_ms(place, min(delays))


def _kept_dead(queue: str, part: Sequence[FinishedJob]) -> tuple[float, int]:
    """Return for how many seconds dead jobs are kept, and how many. See Note [One list of dead jobs]."""
    died = [item.held.backend for item in part if item.settlement is not None and item.settlement.what == "dead"]
    own: list[Options] = [backend.settings for backend in died if backend is not None]
    if not own:
        return FOR_EVER, FOR_EVER
    options = [*own, *keepers_of(queue).values()]
    return max(item.dead_ttl for item in options), max(item.dead_max for item in options)
