"""Brings to Redis what was counted: at most once a second, and nothing while nothing happened.

See `counters.py`, Note [Counters].
"""

import logging
import math
import time

from ..broker import Broker, MinuteCounts
from ..counters import Counts
from ..exceptions import BrokerError
from .timers import Timers

logger = logging.getLogger("django_delayq.worker")

EVERY_SECONDS = 1.0
#: After a failure: counts are worth no trouble.
AGAIN_SECONDS = 10.0


class Counting:
    """What Redis does not take waits for the next call, bounded as `Counts` is. Used by the loop's thread only."""

    def __init__(self, broker: Broker, counted: Counts, timers: Timers) -> None:
        """`timers` know the server's clock, which says what minute it is."""
        self._minutes, self._timers = MinuteCounts(broker), timers
        self._counted = counted
        #: All that was brought since this process began. It only grows; read by other threads.
        self.brought = Counts()
        self._at = 0.0  # not before this monotonic second

    @property
    def again(self) -> float:
        """The monotonic second from which on there is something to bring; infinite for nothing at all."""
        return self._at if self._counted else math.inf

    def write(self) -> None:
        """Bring what there is, where it is time. Never raises because of Redis."""
        if self.again <= time.monotonic():
            self._at = time.monotonic() + EVERY_SECONDS
            self.flush()

    def flush(self) -> None:
        """Bring what there is, now; nothing more after the first failure, as the next one may take long to show."""
        try:
            for queue in {queue for _, queue, _ in self._counted}:
                self._bring(queue)
        except BrokerError as error:
            self._at = time.monotonic() + AGAIN_SECONDS
            logger.debug("Counts wait for Redis: %s", error)

    def _bring(self, queue: str) -> None:
        taken = [(key, tally) for key, tally in self._counted.items() if key[1] == queue]
        self._minutes.add(queue, int(self._timers.server_ms() // 60_000), taken)
        self.brought.merge(taken)
        for key, _ in taken:
            del self._counted[key]
