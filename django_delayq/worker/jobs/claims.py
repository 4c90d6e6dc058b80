"""Claims jobs in one place and has them dispatched; see `worker/claims.py`, whose notes hold here too."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ... import failpoints
from ...broker import JobBroker, Place
from ...exceptions import BrokerError
from ..agenda import Agenda
from ..leases import LeaseKeeper
from ..trouble import Trouble
from .entry import HeldJob

if TYPE_CHECKING:
    from ..dispatch import Dispatcher

#: After an error that nobody foresaw, its jobs come back after so long.
UNFORESEEN_MS = 30_000


class JobClaims:
    """From Redis to the dispatcher. Used by the loop's thread only."""

    def __init__(
        self,
        jobs: JobBroker,
        keeper: LeaseKeeper,
        dispatcher: "Dispatcher",
        agenda: Agenda,
        trouble: Trouble,
        *,
        places: Sequence[Place],
        same_index: Callable[[Place, str | None], bool],
    ) -> None:
        """`same_index` says whether a shard with this epoch is ours."""
        self.jobs, self.keeper, self.dispatcher, self.agenda, self.trouble = jobs, keeper, dispatcher, agenda, trouble
        self._same_index = same_index
        self._request = dict.fromkeys(places, 0)
        self._unanswered: set[Place] = set()

    @property
    def answered(self) -> bool:
        """False while the reply to a claim is missing."""
        return not self._unanswered

    def owes(self, place: Place) -> bool:
        """Say whether the reply to the last claim there is missing: it has to be asked for again."""
        return place in self._unanswered

    def claim(self, place: Place, room: int) -> bool:
        """Claim and dispatch; False where the loop must not go on to the next place: a server failed, or it ends."""
        if place not in self._unanswered:
            self._request[place] += 1
        failpoints.reach("before_claim")
        lease_seconds = self.jobs.broker.config.lease_seconds
        sent = time.monotonic()
        try:
            claim = self.jobs.claim(place, limit=room, lease_ms=int(lease_seconds * 1000), request=self._request[place])
        except BrokerError as error:
            self._unanswered.add(place)
            self.agenda.unanswered(place)
            self.trouble.redis_failed(error, place)
            return False
        failpoints.reach("after_claim")
        self._unanswered.discard(place)
        self.agenda.claimed(place, claim)
        deadline = sent + lease_seconds
        held = [HeldJob(place, entry, claim.holder, deadline) for entry in claim.entries]
        self.keeper.add(held)
        if not self._same_index(place, claim.epoch):
            self.dispatcher.release(held, 0)
            return False
        try:
            self.dispatcher.dispatch_jobs(held)
        except Exception:
            self.dispatcher.release(held, UNFORESEEN_MS)
            raise
        return True
