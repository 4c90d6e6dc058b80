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

For some errors no evidence counts, since good rows meet them while others are taken: a sequence is behind its table, as
after a restore, or a partition is missing. These rows stay here until the database takes them. Errors of other classes
(no connection, a standby that only reads, a right that was revoked) concern every row, and are not kept here.
"""

import logging
import math
from collections import Counter
from collections.abc import Hashable, Iterable

from django.db import DataError, Error, IntegrityError

from .held import Held

logger = logging.getLogger("django_delayq.worker")

#: Seconds between two tries.
FIRST_SECONDS, MOST_SECONDS = 0.1, 5.0
#: PostgreSQL's codes of errors.
UNIQUE_VIOLATION, CHECK_VIOLATION = "23505", "23514"


def may_concern_some(error: Exception) -> bool:
    """Return whether the database may take other rows in spite of this error. See Note [Whose fault]."""
    return not isinstance(error, Error) or isinstance(error, DataError | IntegrityError)


def is_passing(error: Exception) -> bool:
    """Return whether no row is at fault for this error, however many others are taken. See Note [Whose fault].

    PostgreSQL says so by its code and the name of the constraint: its messages are in the language of the server.
    """
    cause = error.__cause__
    diagnostics = getattr(cause, "diag", None)
    constraint = getattr(diagnostics, "constraint_name", None) or ""
    code = getattr(diagnostics, "sqlstate", None)
    return (code == UNIQUE_VIOLATION and constraint.endswith("_pkey")) or (code == CHECK_VIOLATION and not constraint)


class Refusals:
    """Refused rows, in the order of their tries. Used by the loop's thread only."""

    def __init__(self, most: int) -> None:
        """`most`: how many rows may wait here while anything is claimed."""
        self._most = most
        self._rows: dict[Held, None] = {}
        self._on_trial: set[Held] = set()  # taken out of these to be written once more
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
        self._on_trial.update(found)
        return found

    def refuse(self, held: Held, error: Exception, now: float) -> bool:
        """Note that a row was refused alone; return whether it is at fault. If not, it waits here."""
        self._on_trial.discard(held)
        passing = is_passing(error)
        if self._has_evidence(held) and not passing:
            self._told = bool(self._rows or self._on_trial)
            return True
        if held.refused is None:
            held.refused = self._taken[held.sort]
            self._closed = True
        if passing:
            held.refused = math.inf
        if not self._told:
            self._told = True
            self._tries, self._pause, self._again = 0, FIRST_SECONDS, now + FIRST_SECONDS
            text = (
                "The outcome of %s is refused: %s. Refused outcomes are kept and tried again; nothing is lost. If all "
                "are refused, look for a constraint, a trigger, a missing column or partition, or a sequence behind "
                "its table (manage.py sqlsequencereset django_delayq)."
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
            if held in self._on_trial:
                self._on_trial.discard(held)
                self._again = 0.0  # the next one may be taken too
        if not self._rows and not self._on_trial:
            self._told = False
            logger.info("All outcomes are taken again.")

    def _has_evidence(self, held: Held) -> bool:
        return held.refused is not None and held.refused < self._taken[held.sort]
