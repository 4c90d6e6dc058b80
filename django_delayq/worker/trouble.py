"""Failures of Redis or the database: logs them once, retries with growing delays, repairs keys of a wrong type."""

import logging
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress

from django.db import Error, InternalError, ProgrammingError, connections

from .. import ledger
from ..exceptions import BrokerError
from ..index import Broker, Shard
from ..index.connection import DamagedKeys

logger = logging.getLogger("django_delayq.worker")


#: Seconds between two tries of a server, the shortest and the longest delay.
FIRST_SECONDS, MOST_SECONDS = 0.1, 5.0

#: Maximum number of remembered members. At that limit, other members wait for the longest delay.
REMEMBERED = 10_000


class Delays:
    """Delays in ms per member, doubled each time up to a maximum. After three times that, a member is forgotten."""

    def __init__(self, first_ms: int, most_ms: int) -> None:
        self._first_ms, self._most_ms = first_ms, most_ms
        #: The last delay in ms, and when it began (monotonic seconds), the oldest first.
        self.members: dict[str, tuple[int, float]] = {}

    def get_next(self, member: str, now: float) -> int:
        """Return the delay for a member that is handed back again, at this monotonic second."""
        last_ms, _ = self.members.pop(member, (0, 0.0))
        self._forget_old(now)
        if not last_ms and len(self.members) >= REMEMBERED:
            return self._most_ms
        delay_ms = min(2 * last_ms or self._first_ms, self._most_ms)
        self.members[member] = delay_ms, now
        return delay_ms

    def forget(self, member: str) -> None:
        """Restart the delays of a member, because the reason for handing it back is gone."""
        self.members.pop(member, None)

    def _forget_old(self, now: float) -> None:
        while self.members:
            oldest = next(iter(self.members))
            if now - self.members[oldest][1] < 3 * self._most_ms / 1000:
                return
            del self.members[oldest]


class Backoff:
    """A delay that doubles from 0.1 s to 5 s with each failure in a row."""

    def __init__(self) -> None:
        self.until = 0.0
        self._delay = 0.0

    def note_failure(self, now: float) -> bool:
        """Note a failure at `now` (monotonic); return True if it is the first in a row, worth a log line."""
        first = self._delay == 0.0
        self._delay = min(max(FIRST_SECONDS, self._delay * 2), MOST_SECONDS)
        self.until = now + self._delay
        return first

    def note_success(self) -> bool:
        """Note a success; return True if it ends a row of failures."""
        again = self._delay > 0.0
        self._delay = self.until = 0.0
        return again


class Trouble:
    """Failures of the loop's two servers, and the time of the next try."""

    def __init__(self, broker: Broker, shards: Sequence[Shard]) -> None:
        self.broker = broker
        self.shards = shards
        #: The monotonic second before which not to try again; 0 if no failure is noted.
        self.until = 0.0
        self._redis, self._database, self._writes = Backoff(), Backoff(), Backoff()
        self._logged: set[type[Error]] = set()

    def _look_again(self) -> None:
        self.until = max(self._redis.until, self._database.until, self._writes.until)

    def note_redis_success(self) -> bool:
        """Note a success; return True if it ends a row of failures."""
        again = self._redis.note_success()
        if again:
            self._look_again()
            logger.info("Redis answers again.")
        return again

    def note_database_success(self, *, wrote: bool = False) -> None:
        """Note a success. A read does not end a row of failed writes, because a standby can be read."""
        again = self._database.note_success()
        if (wrote and self._writes.note_success()) or again:
            self._look_again()
            self._logged.clear()
            logger.info("The database answers again.")

    def note_redis_failure(self, error: BrokerError, shard: Shard | None = None) -> None:
        """Note a failure; delete keys of a wrong type, whose content a rebuild restores."""
        if self._redis.note_failure(time.monotonic()):
            logger.error("%s Trying again; nothing is lost.", error)
        self._look_again()
        if isinstance(error, DamagedKeys):
            repair(self.broker, self.shards if shard is None else [shard])

    def note_database_failure(self, error: Error, *, writing: bool = False) -> None:
        """Note a failure, log it once in a row with its remedy, and close the connection."""
        (self._writes if writing else self._database).note_failure(time.monotonic())
        self._look_again()
        if type(error) not in self._logged:  # a lost connection is often followed by a different error
            self._logged.add(type(error))
            text, remedy = str(error).strip(), _find_remedy(error)
            logger.error("The database cannot be used now: %s. Trying again; nothing is lost.%s", text, remedy)
        forget_frames(error)
        connections[ledger.get_database()].close()


def repair(broker: Broker, shards: Sequence[Shard]) -> bool:
    """Delete keys of a wrong type; return True if there were any, so that a rebuild is due."""
    found = False
    with suppress(BrokerError):
        for shard in shards:
            if names := broker.repair(shard):
                found = True
                logger.error("Deleted %s, which something else wrote; it is rebuilt.", ", ".join(names))
    return found


def _find_remedy(error: Error) -> str:
    """Return the remedy if waiting alone does not help. SQLite has one class for all these errors."""
    text = str(error)
    if isinstance(error, InternalError) or "readonly" in text:
        return " If it only reads, as a standby does: let it write, or name the primary in DATABASES."
    if isinstance(error, ProgrammingError) or "no such" in text or "no column" in text:
        return " Run `manage.py migrate` with this code, and grant its user the rights on these tables."
    if "_pkey" in text.partition("\n")[0]:  # later lines may quote the row
        return " A sequence is behind its table, as after a restore: see `manage.py sqlsequencereset django_delayq`."
    return ""


def forget_frames(error: BaseException) -> None:
    """Clear the frames of an error, which hold its cursors: SQLite keeps a closed connection open while one exists."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__
