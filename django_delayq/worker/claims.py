"""Claims what is due in one place and has it dispatched. Knows whether the index is still the one that it knew."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError

from .. import failpoints, mirror
from ..broker import Broker, Place
from ..exceptions import BrokerError, ForeignLayout
from ..kinds import Claimed, Held, Kind
from .agenda import Agenda
from .dispatch import Dispatcher
from .trouble import Trouble
from .upkeep import Upkeep

#: After an error that nobody foresaw, its entries come back after so long.
UNFORESEEN_MS = 30_000


class Epochs:
    """Which index each shard had when it was looked at; another one may be another database's."""

    def __init__(self, broker: Broker, agenda: Agenda, trouble: Trouble, upkeep: Upkeep) -> None:
        self.broker, self.agenda, self.trouble, self.upkeep = broker, agenda, trouble, upkeep
        self._known: dict[Place, str] = {}

    def is_new(self, place: Place, epoch: str | None) -> bool:
        """Say whether this is another index than the last one that was ours."""
        return epoch is not None and self._known.get(place) != epoch.removeprefix("building:")

    def same(self, place: Place, epoch: str | None) -> bool:
        """Say whether the shard is ours. At first, or after a flush, it may be another database's: then stop."""
        if epoch is None:
            self.upkeep.rebuild_soon()
            self.agenda.flushed(place)
            return True
        if not self.is_new(place, epoch):
            return True
        try:
            mirror.check_layout(self.broker)
        except ForeignLayout as error:
            self.upkeep.fail(error)
            return False
        except BrokerError as error:
            self.trouble.redis_failed(error, place)
            return False
        except DatabaseError as error:
            self.trouble.database_failed(error)
            return False
        self._known[place] = epoch.removeprefix("building:")
        return True


class Claims:
    """From Redis to the dispatcher. Used by the loop's thread only.

    Note [Lost reply]
    A claim whose reply was lost may have been executed: its members are leased, and nobody knows it. So the next claim
    from that place carries the same request number, and Redis repeats the reply from the journal of this process, as
    far as the leases still stand. Every other claim carries a new number. Without the repetition those members would
    wait for the end of their leases, and count as taken over.

    Note [Whose turn]
    The first kind is asked each time, and tells which others have something due. In a shard whose index is a new one
    all are asked: a rebuild brings back no member that stands for them, a claim of theirs does. What is due of two
    kinds shares the room, and a kind that found none comes first the next time.
    """

    def __init__(
        self, kinds: Sequence[Kind[Any]], dispatcher: Dispatcher, agenda: Agenda, trouble: Trouble, epochs: Epochs
    ) -> None:
        self.first, *others = kinds
        self.others = {kind.name: kind for kind in others}
        self.dispatcher, self.agenda, self.trouble, self.epochs = dispatcher, agenda, trouble, epochs
        self._request: dict[tuple[Kind[Any], Place], int] = {}
        self._unanswered: set[tuple[Kind[Any], Place]] = set()
        self._owed: dict[Place, list[Kind[Any]]] = {}  # kinds that found no room there, or whose reply is missing

    @property
    def answered(self) -> bool:
        """False while the reply to a claim is missing. See Note [Lost reply]."""
        return not self._unanswered

    def claim(self, place: Place, room: Callable[[], int]) -> bool:
        """Claim and dispatch what is due of each kind, as long as there is room; see Note [Whose turn].

        False where the loop must not go on to the next place: a server failed, or it ends.
        """
        owed = self._owed.pop(place, [])
        while owed and room() > 0:
            if self._claim(owed[0], place, max(1, room() // (len(owed) + 1))) is None:
                self._owed[place] = owed
                return False
            owed.pop(0)
        if owed or room() <= 0:
            self._owed[place] = owed
            return True
        claimed = self._claim(self.first, place, room())
        if claimed is None:
            return False
        for kind in claimed:
            if room() <= 0:
                self._owed.setdefault(place, []).append(kind)
            elif self._claim(kind, place, room()) is None:
                self._owed.setdefault(place, []).append(kind)
                return False
        return True

    def _claim(self, kind: Kind[Any], place: Place, limit: int) -> list[Kind[Any]] | None:
        """Claim and dispatch of one kind; return which others have something due there, None where that failed."""
        key = kind, place
        if key not in self._unanswered:
            self._request[key] = self._request.get(key, 0) + 1
        failpoints.reach("before_claim")
        deadline = time.monotonic() + self.dispatcher.keeper.lease_seconds  # before it is sent: see `leases.py`
        try:
            claimed = kind.claim(place, limit, self._request[key], deadline)
        except BrokerError as error:
            self._unanswered.add(key)
            self.agenda.unanswered(place)
            self.trouble.redis_failed(error, place)
            return None
        failpoints.reach("after_claim")
        self._unanswered.discard(key)
        if self.trouble.redis_worked():
            self.epochs.upkeep.redis_is_back()
        self.agenda.claimed(place, claimed.now_ms, claimed.head_ms)
        new = self.epochs.is_new(place, claimed.epoch)
        if not self._dispatch(kind, place, claimed):
            return None
        return [other for name, other in self.others.items() if new or name in claimed.also]

    def _dispatch(self, kind: Kind[Any], place: Place, claimed: Claimed[Any]) -> bool:
        entries: list[Held] = claimed.entries
        self.dispatcher.keeper.add(entries)
        if not self.epochs.same(place, claimed.epoch):
            self.dispatcher.release(entries, 0)
            return False
        try:
            return self.dispatcher.dispatch(kind, entries) if entries else True
        except Exception:
            self.dispatcher.release(entries, UNFORESEEN_MS)
            raise
