"""Which worker comes first. Computes only; who lives and who did not come is told to it.

Note [Shares]
Every worker may claim from every place, so nothing ever waits for a certain worker. But if all of them asked for every
place and woke for every head, an idle fleet would cost workers x places. So the live workers that serve a queue have an
order for each place and for each head, by hash (rendezvous hashing): everybody computes the same order without asking,
and where a worker comes or goes the order of the others stays.
A place's order says who looks after it for heads that nobody told of: the first one every IDLE_CAP_SECONDS, the second
one now and then in case the first is dead, the others not at all. A head's order says who claims when its time has
come: the first one at once, each next one a little later, and only if the head is still there. Heads have orders of
their own so that the work spreads over the fleet, also where there is a single place.
Whoever should have come before and did not, because it is dead, busy or stopped, is passed over for a while. So a
worker that dies delays some heads by a fraction of a second, and nobody has to find out that it is dead.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from ..broker import Place

#: Between one worker and the next in the order of a head: so much, but the last one comes within ALL_SECONDS.
STEP_SECONDS = 0.1
ALL_SECONDS = 0.5
#: How long a worker that did not come is passed over.
ABSENT_SECONDS = 30.0


def weight(worker: str, place: Place, head_ms: int | None) -> bytes:
    """Return what orders the workers at a head, or at a place without one: the greatest is the first."""
    return blake2b(f"{worker} {place} {head_ms}".encode(), digest_size=8).digest()


class Share:
    """The ranks of one worker: 0 where it is the first. Until it is told of others it is the first everywhere."""

    def __init__(self, worker: str, places: Sequence[Place]) -> None:
        self.worker = worker
        self.places = places
        self.step_seconds = STEP_SECONDS
        self._workers: Mapping[str, Collection[str] | None] = {}
        self._ranks = dict.fromkeys(places, 0)
        self._others = dict.fromkeys(places, 0)
        self._absent: dict[str, float] = {}  # until which monotonic second

    def update(self, workers: Mapping[str, Collection[str] | None]) -> None:
        """Take over who lives, and which queues each serves; None where that is not known, so it may be all."""
        others = {name: queues for name, queues in workers.items() if name != self.worker}
        if others == self._workers:
            return
        self._workers = others
        self._absent = {name: until for name, until in self._absent.items() if name in others}
        self.step_seconds = min(STEP_SECONDS, ALL_SECONDS / (len(others) + 1))
        self._ranks = {place: len(self._before(place, None, others)) for place in self.places}
        self._others = {place: sum(self._serves(name, place.queue) for name in others) for place in self.places}

    def rank(self, place: Place) -> int:
        """Return how many workers come before this one in looking after a place."""
        return self._ranks[place]

    def others(self, place: Place) -> int:
        """Return how many other workers serve a place."""
        return self._others[place]

    def before(self, place: Place, head_ms: int, now: float) -> list[str]:
        """Return the workers that come before this one at a head."""
        present = (name for name in self._workers if self._absent.get(name, 0.0) <= now)
        return self._before(place, head_ms, present)

    def did_not_come(self, workers: Iterable[str], now: float) -> None:
        """Pass these over for a while: a head was still there when it was this worker's turn."""
        self._absent.update(dict.fromkeys(workers, now + ABSENT_SECONDS))

    def _before(self, place: Place, head_ms: int | None, others: Iterable[str]) -> list[str]:
        serving = (name for name in others if self._serves(name, place.queue))
        mine = weight(self.worker, place, head_ms)
        return [name for name in serving if weight(name, place, head_ms) > mine]

    def _serves(self, name: str, queue: str) -> bool:
        queues = self._workers[name]
        return queues is None or queue in queues
