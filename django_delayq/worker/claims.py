"""Claims what is due in one place and has it dispatched. Knows whether the index is still the one that it knew."""

import time
from collections.abc import Callable, Sequence

from django.db import DatabaseError

from .. import failpoints, mirror
from ..broker import Broker, Claim, Place
from ..exceptions import BrokerError, ForeignLayout
from ..timing import from_ms
from .agenda import Agenda
from .dispatch import Dispatcher
from .entry import Held
from .leases import LeaseKeeper
from .trouble import Trouble
from .upkeep import Upkeep

#: After an error that nobody foresaw, its entries come back after so long.
UNFORESEEN_MS = 30_000


class Claims:
    """From Redis to the dispatcher. Used by the loop's thread only.

    Note [Lost reply]
    A claim whose reply was lost may have been executed: its members are leased, and nobody knows it. So the next claim
    from that place carries the same request number, and Redis repeats the reply from the journal of this process, as
    far as the leases still stand. Every other claim carries a new number. Without the repetition those members would
    wait for the end of their leases, and count as taken over.
    """

    def __init__(
        self,
        broker: Broker,
        keeper: LeaseKeeper,
        dispatcher: Dispatcher,
        agenda: Agenda,
        trouble: Trouble,
        upkeep: Upkeep,
        *,
        places: Sequence[Place],
        fail: Callable[[Exception], None],
    ) -> None:
        """`fail` is told what must end this worker."""
        self.broker, self.keeper, self.dispatcher, self.agenda = broker, keeper, dispatcher, agenda
        self.trouble, self.upkeep = trouble, upkeep
        self._fail = fail
        self._request = dict.fromkeys(places, 0)
        self._unanswered: set[Place] = set()
        self._epochs: dict[Place, str] = {}
        #: Whether jobs are to be claimed there too: the last claim told of some, or the index is a new one. A rebuild
        #: brings back no member that stands for them, a claim of theirs does.
        self.jobs_due = False

    @property
    def answered(self) -> bool:
        """False while the reply to a claim is missing. See Note [Lost reply]."""
        return not self._unanswered

    def claim(self, place: Place, room: int) -> bool:
        """Claim and dispatch; False where the loop must not go on to the next place: a server failed, or it ends."""
        if place not in self._unanswered:
            self._request[place] += 1
        failpoints.reach("before_claim")
        lease_seconds = self.broker.config.lease_seconds
        sent = time.monotonic()
        try:
            claim = self.broker.claim(
                place, limit=room, lease_ms=int(lease_seconds * 1000), request=self._request[place]
            )
        except BrokerError as error:
            self._unanswered.add(place)
            self.agenda.unanswered(place)
            self.trouble.redis_failed(error, place)
            return False
        failpoints.reach("after_claim")
        self._unanswered.discard(place)
        if self.trouble.redis_worked():
            self.upkeep.redis_is_back()
        self.agenda.claimed(place, claim)
        self.jobs_due = claim.jobs_due or self._is_new(place, claim.epoch)
        return self._dispatch(place, claim, sent + lease_seconds)

    def _dispatch(self, place: Place, claim: Claim, deadline: float) -> bool:
        entries = [Held(place, entry, claim.fence, from_ms(claim.now_ms), deadline) for entry in claim.entries]
        self.keeper.add(entries)
        if not self.same_index(place, claim.epoch):
            self.dispatcher.release(entries, 0)
            return False
        try:
            return self.dispatcher.dispatch(entries) if entries else True
        except Exception:
            self.dispatcher.release(entries, UNFORESEEN_MS)
            raise

    def same_index(self, place: Place, epoch: str | None) -> bool:
        """Say whether the shard is ours. At first, or after a flush, it may be another database's: then stop."""
        if epoch is None:
            self.upkeep.rebuild_soon()
            self.agenda.flushed(place)
            return True
        if not self._is_new(place, epoch):
            return True
        try:
            mirror.check_layout(self.broker)
        except ForeignLayout as error:
            self._fail(error)
            return False
        except BrokerError as error:
            self.trouble.redis_failed(error, place)
            return False
        except DatabaseError as error:
            self.trouble.database_failed(error)
            return False
        self._epochs[place] = epoch.removeprefix("building:")
        return True

    def _is_new(self, place: Place, epoch: str | None) -> bool:
        return epoch is not None and self._epochs.get(place) != epoch.removeprefix("building:")
