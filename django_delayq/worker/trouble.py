"""Redis or the database does not answer: say it once, wait with growing delays, mend what can be mended."""

import logging
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress

from django.db import Error, InternalError, ProgrammingError, connections

from .. import ledger
from ..broker import Broker, Place
from ..exceptions import BrokerError, DamagedKeys
from .delays import Backoff

logger = logging.getLogger("django_delayq.worker")


class Trouble:
    """What stands between the loop and its servers. `until` is the monotonic second before which not to try again."""

    def __init__(self, broker: Broker, places: Sequence[Place]) -> None:
        self.broker = broker
        self.places = places
        self._redis, self._database, self._writes = Backoff(), Backoff(), Backoff()
        self._told: set[type[Error]] = set()

    @property
    def until(self) -> float:
        """The monotonic second of the next try; in the past where all is well."""
        return max(self._redis.until, self._database.until, self._writes.until)

    def redis_worked(self) -> bool:
        """Note a success; say whether it ends a row of failures."""
        again = self._redis.worked()
        if again:
            logger.info("Redis answers again.")
        return again

    def database_worked(self, *, wrote: bool = False) -> None:
        """Note a success. Reading ends no row of failures to write: a standby can be read."""
        again = self._database.worked()
        if (wrote and self._writes.worked()) or again:
            self._told.clear()
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

    def database_failed(self, error: Error, *, writing: bool = False) -> None:
        """Note a failure, say once in a row what it is and what to do, and connect anew the next time."""
        (self._writes if writing else self._database).failed(time.monotonic())
        if type(error) not in self._told:  # after the end of a connection comes what the next one is told
            self._told.add(type(error))
            text = str(error).strip()
            logger.error("The database cannot be used now: %s. Trying again; nothing is lost.%s", text, _remedy(error))
        forget_frames(error)
        connections[ledger.database()].close()


def _remedy(error: Error) -> str:
    """Return what to do where waiting alone does not help. SQLite has one class of errors for all of this."""
    text = str(error)
    if isinstance(error, InternalError) or "readonly" in text:
        return " If it only reads, as a standby does: let it write, or name the primary in DATABASES."
    if isinstance(error, ProgrammingError) or "no such" in text or "no column" in text:
        return " Run `manage.py migrate` with this code, and grant its user the rights on these tables."
    return ""


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of an error hold: its cursors.

    Django's database errors are part of a reference cycle, and SQLite keeps a closed connection open for as long as one
    of its cursors exists: left to the garbage collector, an outage would cost descriptors with each try.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__
