"""Has stopped what people want to be stopped while it runs. Used by the loop's thread only.

The request is a row (`models/cancellation.py`): so it reaches every worker, and is not lost with a flush of Redis or
with the worker that was told. Whoever executes something looks for requests about it twice a second.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping

from django.db import Error, connections

from .. import ledger
from .held import Held
from .timeouts import Timeouts
from .trouble import Backoff

logger = logging.getLogger("django_delayq.worker")


class Stops:
    """Reads requests, and has them followed; see `timeouts.py`, Note [Soft and hard timeouts]."""

    def __init__(
        self, timeouts: Timeouts, *, read: Callable[[Collection[int]], Mapping[int, str]] = ledger.read_cancellations
    ) -> None:
        self._timeouts, self._read = timeouts, read
        self._backoff = Backoff()

    def round(self, running: Collection[Held]) -> None:
        """Have stopped what is to be. Without the database nothing is stopped, and nothing else happens."""
        named = {key: held for held in running if held.stopped_by is None and (key := held.stop_key)}
        if not named or time.monotonic() < self._backoff.until:
            return
        try:
            asked = self._read(named)
        except Error as error:
            if self._backoff.failed(time.monotonic()):
                logger.warning("It cannot be read what is to be stopped: %s", str(error).strip())
            connections.close_all()
            return
        self._backoff.worked()
        for key, by in asked.items():
            if self._timeouts.cancel(named[key], by):
                logger.warning("%s is stopped by %s.", named[key].title, by or "somebody")
