"""Writes the rows of long executions, and stops executions on request. Short tasks cost no write. See `judge.py`."""

import logging
import time
from collections.abc import Collection

from django.db import DataError, Error, IntegrityError, connections

from .. import ledger
from .held import Lease
from .recorder import Recorder
from .slots import Slots
from .timeouts import Timeouts
from .trouble import Backoff

logger = logging.getLogger("django_delayq.worker")

#: Seconds between two looks: the maximum delay of a row, and the interval of retries.
LOOK_SECONDS = 0.5


class Showing:
    """Used by the loop's thread only."""

    def __init__(self, recorder: Recorder, slots: Slots, timeouts: Timeouts, *, after_seconds: float) -> None:
        self._trip, self._keeper, self._trouble = recorder.trip, recorder.keeper, recorder.trouble
        self._slots, self._timeouts, self._after = slots, timeouts, after_seconds
        #: The monotonic second of the next round, if anything runs.
        self.look_at = 0.0
        self._refused: set[Lease] = set()  # running entries that must get no row
        self._backoff = Backoff()  # of the reads of requests to stop

    def run_round(self) -> None:
        """Write the rows of executions that have run long enough. A database failure is noted and not raised."""
        now = time.monotonic()
        self.look_at = now + LOOK_SECONDS
        running = {held: now - began for held, began in self._slots.list_executing() if held in self._keeper}
        self._stop_on_request(running)
        self._refused &= running.keys()
        late = [held for held, seconds in running.items() if seconds >= self._after and held not in self._refused]
        if not late:
            return
        try:
            refused = self._trip.show(late)
            if refused is not None:
                self._refused.update(refused)
                self._trouble.note_database_success(wrote=True)
        except (DataError, IntegrityError):  # a row is at fault, which the write of its outcome reports
            self._refused.update(late)
        except Error as error:
            self._trouble.note_database_failure(error, writing=True)

    def _stop_on_request(self, running: Collection[Lease]) -> None:
        named = {key: held for held in running if held.stopped_by is None and (key := held.outcome.run.pk)}
        if not named or time.monotonic() < self._backoff.until:
            return
        try:
            requests = ledger.read_stop_requests(named)
        except Error as error:
            if self._backoff.note_failure(time.monotonic()):
                logger.warning("Requests to stop runs cannot be read: %s", str(error).strip())
            connections.close_all()
            return
        self._backoff.note_success()
        for key, by in requests.items():
            if self._timeouts.cancel(named[key], by):
                logger.warning("%s is stopped by %s.", named[key].title, by or "a user")
