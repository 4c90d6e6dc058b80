"""Redis or the database does not answer: say it once, wait with growing delays, mend what can be mended."""

import logging
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress

from django.db import DatabaseError, connections

from .. import ledger
from ..broker import Broker, Place
from ..exceptions import BrokerError, DamagedKeys
from .backoff import Backoff

logger = logging.getLogger("django_delayq.worker")


class Trouble:
    """What stands between the loop and its servers. `until` is the monotonic second before which not to try again."""

    def __init__(self, broker: Broker, places: Sequence[Place]) -> None:
        self.broker = broker
        self.places = places
        self._redis, self._database = Backoff(), Backoff()

    @property
    def until(self) -> float:
        """The monotonic second of the next try; in the past where all is well."""
        return max(self._redis.until, self._database.until)

    def redis_worked(self) -> bool:
        """Note a success; say whether it ends a row of failures."""
        again = self._redis.worked()
        if again:
            logger.info("Redis answers again.")
        return again

    def database_worked(self) -> None:
        """Note a success."""
        if self._database.worked():
            logger.info("The database answers again.")

    def redis_failed(self, error: BrokerError, place: Place | None = None) -> None:
        """Note a failure; keys of a foreign type are deleted, a rebuild brings back what stood there."""
        if self._redis.failed(time.monotonic()):
            logger.error("%s Trying again; nothing is lost.", error)
        if isinstance(error, DamagedKeys):
            with suppress(BrokerError):
                for bad in self.places if place is None else [place]:
                    names = self.broker.repair(bad)
                    if names:
                        logger.error("Deleted %s, which something else wrote; it is rebuilt.", ", ".join(names))

    def database_failed(self, error: DatabaseError) -> None:
        """Note a failure, and connect anew the next time."""
        if self._database.failed(time.monotonic()):
            logger.error("The database cannot be used now: %s. Trying again; nothing is lost.", str(error).strip())
        forget_frames(error)
        connections[ledger.database()].close()


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of an error hold: its cursors.

    Django's database errors are part of a reference cycle, and SQLite keeps a closed connection open for as long as one
    of its cursors exists: left to the garbage collector, an outage would cost descriptors with each try.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__
