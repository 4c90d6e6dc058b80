"""Keeps rows that the database refused until it is known whether they are at fault.

Note [Whose fault]
The class of an error is no evidence. A missing column or partition, a constraint or a trigger refuses every row with
the same IntegrityError or DataError as a bad row. So a batch that is refused is written one by one, and a row is at
fault only where it is refused once more after other rows of its sort (`Held.sort`) were taken. Only then it is
discarded: it comes due again when its lease ends. What every row meets is an outage. The rows stay here, under their
renewed leases: discarded, what has succeeded would be executed again, and in the end be lost(poison).

One row is tried again after each pause, and all rows of a sort once one of it was taken. Until any new row is taken,
or while a batch of rows waits here, nothing more is claimed. But a bad row must not stop a worker that has no other
row: after the tries 1, 2, 4, 8, ... one entry may be claimed, whose outcome is then the evidence.

Some errors need no evidence: those of other classes (no connection, a standby that only reads, a right that was
revoked), and those in PASSING. Any row may meet them, although others are taken.
"""

import logging
import math
from collections import Counter
from collections.abc import Hashable, Iterable

from django.db import DataError, Error, IntegrityError

from ..kinds import Held

logger = logging.getLogger("django_delayq.worker")

#: Between two tries.
FIRST_SECONDS, MOST_SECONDS = 0.1, 5.0
#: Parts of messages: a sequence is behind its table, as after a restore; a partition is missing. Both spare some rows.
PASSING = ('_pkey"', "no partition of relation")


def may_be_its_own(error: Exception) -> bool:
    """Return whether a row may be at fault for this error. See Note [Whose fault]."""
    if not isinstance(error, Error):
        return True
    line = str(error).partition("\n")[0]  # what follows may quote the row
    return isinstance(error, DataError | IntegrityError) and not any(text in line for text in PASSING)


class Refusals:
    """Refused rows, in the order of their tries. Used by the loop's thread only."""

    def __init__(self, most: int) -> None:
        """`most`: how many rows may wait here while anything is claimed."""
        self._most = most
        self._rows: dict[Held, None] = {}
        self._taken: Counter[Hashable] = Counter()  # rows of each sort, while others waited here
        self._closed = self._probe = self._told = False
        self._tries, self._pause, self._again = 0, FIRST_SECONDS, 0.0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def again(self) -> float:
        """The monotonic second of the next try: 0 for now, infinite where no row waits."""
        if not self._rows:
            return math.inf
        return 0.0 if any(map(self._has_evidence, self._rows)) else self._again

    def room(self) -> float:
        """Return how many entries may be claimed: any number, one as a probe, or none."""
        if self._rows and (self._closed or len(self._rows) >= self._most):
            return int(self._probe)
        return math.inf

    def claimed(self) -> None:
        """Note that something was claimed."""
        self._probe = False

    def due(self, now: float) -> list[Held]:
        """Take out the rows that are to be tried again at this monotonic second."""
        found = list(filter(self._has_evidence, self._rows))
        if not found and self._rows and now >= self._again:
            found = [next(iter(self._rows))]
            self._tries += 1
            self._probe = self._probe or not self._tries & (self._tries - 1)
            self._pause = min(2 * self._pause, MOST_SECONDS)
            self._again = now + self._pause
        for held in found:
            del self._rows[held]
        return found

    def refuse(self, held: Held, error: Exception, now: float) -> bool:
        """Note that a row was refused alone; return whether it is at fault. If not, it waits here."""
        if self._has_evidence(held):
            self._told = bool(self._rows)
            return True
        if held.refused is None:
            held.refused = self._taken[held.sort]
            self._closed = True
        if not self._told:
            self._told = True
            self._tries, self._pause, self._again = 0, FIRST_SECONDS, now + FIRST_SECONDS
            text = (
                "The outcome of %s is refused: %s. Refused outcomes are kept and tried again; nothing is lost. If all "
                "are refused, look for a constraint, a trigger, or a missing column or partition in the database."
            )
            logger.error(text, held.title, str(error).strip().partition("\n")[0].rstrip(".") or repr(error))
        self._rows[held] = None
        return False

    def passed(self, batch: Iterable[Held]) -> None:
        """Note that the database refused none of these; what it has taken is evidence."""
        if not self._told:
            return
        for held in batch:
            if held.taken:
                self._taken[held.sort] += 1
                self._closed = False
        if not self._rows and self._told:
            self._told = False
            logger.info("All outcomes are taken again.")

    def _has_evidence(self, held: Held) -> bool:
        return held.refused is not None and held.refused < self._taken[held.sort]
