"""When to turn to which place: at the times of known heads, and for regular looks at heads that nobody told of.

And which worker comes first. Claims nothing. Used by the loop's thread only.

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

import json
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from ..broker import Broker, Place
from ..kinds import Due

#: How often to ask who lives, and what time it is; at first sooner, because a fleet starts at the same time. Who has
#: said so for the last time two and a half heartbeats ago is dead.
WORKERS_FIRST_SECONDS, WORKERS_SECONDS = 2.0, 60.0
DEAD_AFTER_SECONDS = 75.0
#: The second worker of a place looks after it once in so many looks of the first.
SECOND_EVERY = 12
#: A place is claimed from so often, whatever is known of it.
LONGEST_SECONDS = 3600.0
#: Longer than it takes all other workers to have their turn at what is due; ALL_SECONDS.
STAND_BACK_SECONDS = 1.0
#: It is done so often at most in one place: what no worker knows must not keep all of them from everything else.
STAND_BACK_EVERY_SECONDS = 10.0
#: The first worker of a place that was flushed asks so often whether it has been rebuilt, the others less often.
REBUILD_SECONDS = 0.2


class Agenda:
    """Knows per place when this worker's turn is. See Note [Shares]."""

    def __init__(self, broker: Broker, places: Sequence[Place], *, cap_seconds: float, alone: bool) -> None:
        """`alone`: mind no other workers, be the first everywhere."""
        self.broker = broker
        self.places = places
        self.share = Share(broker.worker, places)
        self._cap_seconds = cap_seconds
        self._turn = dict.fromkeys(places, 0.0)  # monotonic second at which to claim, or to look before
        self._not_before = dict.fromkeys(places, 0.0)  # monotonic second up to which to leave it to others
        self._stood_back = dict.fromkeys(places, -math.inf)  # monotonic second of the last time that it was
        self._before: dict[Place, tuple[int, list[str]]] = {}  # the head of that turn, and who comes before us there
        self._look_at = 0.0  # monotonic second of the next regular look
        self._looks = 0
        self._workers_at = math.inf if alone else 0.0
        self._workers_pause = WORKERS_FIRST_SECONDS
        self._queues: dict[str, Collection[str] | None] = {}  # of the live workers
        # The server's clock less the monotonic one. Each node of a cluster has a clock of its own.
        self._offsets_ms = dict.fromkeys(places, 0.0)

    # -- told by others

    def claimed(self, place: Place, now_ms: int, head_ms: int | None) -> None:
        """Note what a claim tells: the server's clock and the next head."""
        now = time.monotonic()
        self._offsets_ms[place] = now_ms - now * 1000
        # What is due already waits for a free worker, not for the first one.
        due = head_ms is not None and head_ms <= now_ms
        self._claim_at(place, now if due else now + LONGEST_SECONDS)
        if head_ms is not None and not due:
            self.due_at_ms(place, head_ms)

    def due_at_ms(self, place: Place, server_ms: int) -> None:
        """Note that something comes due at this time of the server's."""
        if place not in self._turn:
            return
        head = (server_ms - self._offsets_ms[place]) / 1000
        if head >= self._turn[place]:
            return
        before = self.share.before(place, server_ms, time.monotonic()) if self.share.workers else []
        at = max(head + len(before) * self.share.step_seconds, self._not_before[place])
        if at < self._turn[place]:
            self._turn[place] = at
            self._before[place] = server_ms, before

    def due(self, dues: Iterable[Due]) -> None:
        """Note when something comes due."""
        for place, due_ms, now_ms in dues:
            if now_ms:
                self._offsets_ms[place] = now_ms - time.monotonic() * 1000
            if due_ms is not None:
                self.due_at_ms(place, due_ms)

    def due_in_ms(self, place: Place, delay_ms: int) -> None:
        """Note that something comes due so many ms from now."""
        if place in self._turn:
            self.due_at_ms(place, int(self._offsets_ms[place] + time.monotonic() * 1000) + delay_ms)

    def stand_back(self, place: Place) -> bool:
        """Leave what is due in this place to the other workers for a moment, if there are any; say whether this is so.

        Not again for STAND_BACK_EVERY_SECONDS.
        """
        now = time.monotonic()
        since = now - self._stood_back.get(place, -math.inf)
        known = place in self._turn and self.share.others(place)
        if not known or STAND_BACK_SECONDS <= since < STAND_BACK_EVERY_SECONDS:
            return False
        if since >= STAND_BACK_EVERY_SECONDS:
            self._stood_back[place] = now
            self._not_before[place] = now + STAND_BACK_SECONDS
        self._turn[place] = max(self._turn[place], self._not_before[place])
        return True

    def unanswered(self, place: Place) -> None:
        """Note that a claim's reply was lost: it is to be asked for again, whatever the head is."""
        self._claim_at(place, time.monotonic())

    def flushed(self, place: Place) -> None:
        """Note that the place is being rebuilt: claim from it again soon."""
        self._claim_at(place, time.monotonic() + REBUILD_SECONDS * (1 + self.share.rank(place)))

    # -- asked by the loop

    def until(self, now: float) -> float:
        """Return the seconds until there is something to do."""
        return max(0.0, min(self._look_at, self._workers_at, *self._turn.values()) - now)

    def nothing_now(self, now: float) -> bool:
        """Say whether it is no place's turn."""
        return all(turn > now for turn in self._turn.values())

    def turns(self, now: float) -> list[Place]:
        """Return the places to claim from now, the longest waiting first.

        Where other workers come first, asks Redis before whether the head is still due: one plain read per place.

        Raises:
            BrokerError: Nothing is known; all stands as it was.
        """
        places = [place for place in self.places if self._turn[place] <= now]
        doubtful = [place for place in places if self._before.get(place, (0, []))[1]]
        if doubtful:
            for place, head_ms in zip(doubtful, self.broker.heads(doubtful), strict=True):
                self._verify(place, head_ms, now)
            places = [place for place in places if self._turn[place] <= now]
        return sorted(places, key=self._turn.__getitem__)

    def look(self, now: float) -> list[Place] | None:
        """Where it is time, ask who lives, and for the heads of this worker's places: a hint may have been lost.

        Returns those that are empty, perhaps because Redis was flushed; None where there was nothing to ask.

        Raises:
            BrokerError: It is still time.
        """
        if now >= self._workers_at:
            self._ask_who_lives()
            self._workers_at = now + self._workers_pause
            self._workers_pause = min(2 * self._workers_pause, WORKERS_SECONDS)
        if now < self._look_at:
            return None
        long_look = self._looks % SECOND_EVERY == SECOND_EVERY - 1
        asked = [place for place in self.places if self.share.rank(place) <= long_look]
        heads = self.broker.heads(asked)
        self._look_at = now + self._cap_seconds
        self._looks += 1
        for place, head_ms in zip(asked, heads, strict=True):
            if head_ms is not None:
                self.due_at_ms(place, head_ms)
        return [place for place, head_ms in zip(asked, heads, strict=True) if head_ms is None] if asked else None

    # -- inside

    def _claim_at(self, place: Place, when: float) -> None:
        """Claim then, whoever comes first."""
        self._turn[place] = max(when, self._not_before[place])
        self._before.pop(place, None)

    def _verify(self, place: Place, head_ms: int | None, now: float) -> None:
        """Take over a head as it stands at our turn. If it is the one we came for, those before us did not come."""
        expected_ms, before = self._before[place]
        self._claim_at(place, now + LONGEST_SECONDS)
        if head_ms == expected_ms:
            self.share.did_not_come(before, now)
            self._claim_at(place, now)
        elif head_ms is not None:
            self.due_at_ms(place, head_ms)

    def _ask_who_lives(self) -> None:
        clocks = self.broker.clocks_ms(self.places)
        for place, clock_ms in zip(self.places, clocks, strict=True):
            self._offsets_ms[place] = clock_ms - time.monotonic() * 1000
        names = self.broker.live_workers(since_ms=clocks[0] - int(DEAD_AFTER_SECONDS * 1000))
        unknown = [name for name in names if self._queues.get(name) is None]
        details = self.broker.details_of(unknown)
        self._queues = {name: self._queues.get(name) or _queues(details.get(name)) for name in names}
        self.share.update(self._queues)


def _queues(details: str | None) -> frozenset[str] | None:
    """Return the queues that a worker says it serves, or None where it does not say."""
    try:
        return frozenset(str(queue) for queue in json.loads(details or "")["queues"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


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
        self.workers: Mapping[str, Collection[str] | None] = {}
        self._ranks = dict.fromkeys(places, 0)
        self._others = dict.fromkeys(places, 0)
        self._absent: dict[str, float] = {}  # until which monotonic second

    def update(self, workers: Mapping[str, Collection[str] | None]) -> None:
        """Take over who lives, and which queues each serves; None where that is not known, so it may be all."""
        others = {name: queues for name, queues in workers.items() if name != self.worker}
        if others == self.workers:
            return
        self.workers = others
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
        present = (name for name in self.workers if self._absent.get(name, 0.0) <= now)
        return self._before(place, head_ms, present)

    def did_not_come(self, workers: Iterable[str], now: float) -> None:
        """Pass these over for a while: a head was still there when it was this worker's turn."""
        self._absent.update(dict.fromkeys(workers, now + ABSENT_SECONDS))

    def _before(self, place: Place, head_ms: int | None, others: Iterable[str]) -> list[str]:
        serving = (name for name in others if self._serves(name, place.queue))
        mine = weight(self.worker, place, head_ms)
        return [name for name in serving if weight(name, place, head_ms) > mine]

    def _serves(self, name: str, queue: str) -> bool:
        queues = self.workers[name]
        return queues is None or queue in queues
