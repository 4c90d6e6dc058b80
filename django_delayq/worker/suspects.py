"""Which suspects run alone in this process, and when (rule R6). Starts nothing and hands nothing back itself.

Note [Suspects run alone]
A task that kills its process also kills the tasks beside it, and afterwards all of them look alike. So take-overs are
counted in the `running` row, when an execution really begins. The first one runs normally, because most processes die
of a deploy or with their machine. From the second one on an entry runs alone: the process stops claiming, hands back
unstarted entries, waits for the running ones, and executes nothing else until this entry is recorded. So other entries
die with a killer at most twice; the killer is lost(poison) after `max_reclaims` take-overs. Because this process claims
nothing while it waits, the suspect is handed back for REFUSED_MS after ALONE_WITHIN_SECONDS.
"""

import time

from .held import Lease
from .recorder import Recorder

#: The number of take-overs from which on an entry runs alone.
ALONE_FROM = 2
#: Seconds that a suspect waits for other tasks of this process before it is handed back.
ALONE_WITHIN_SECONDS = 10.0
#: Delay of a suspect that is handed back after ALONE_WITHIN_SECONDS.
REFUSED_MS = 60_000


class Suspects:
    """The entries that wait to run alone, and the one that does. Used by the loop's thread only."""

    def __init__(self, recorder: Recorder, *, max_reclaims: int) -> None:
        self._keeper, self._recorder = recorder.keeper, recorder
        self._alone_from, self._max_reclaims = min(ALONE_FROM, max(1, max_reclaims)), max_reclaims
        self.waiting: list[Lease] = []
        self.alone: Lease | None = None
        self._since = 0.0

    def is_active(self) -> bool:
        """Return True if nothing else may be claimed or started now; never if `waiting` and `alone` are empty."""
        return bool(self.waiting) or (self.alone is not None and self._is_running(self.alone))

    def _is_running(self, alone: Lease) -> bool:
        return alone in self._keeper and alone not in self._recorder.locked

    def is_suspect(self, held: Lease) -> bool:
        """Return True if the next execution must run alone. False for poison, which is not executed."""
        return self._alone_from <= held.take_overs <= self._max_reclaims

    def add(self, held: Lease) -> None:
        """Queue a suspect for its turn; its lease is renewed while it waits."""
        if not self.waiting:
            self._since = time.monotonic()
        self.waiting.append(held)

    def take_next(self) -> Lease | None:
        """Return the suspect whose turn it is, once all other entries are recorded or wait for a lock."""
        lost = [held for held in self.waiting if held.lost]
        self._keeper.discard(lost)
        self.waiting = [held for held in self.waiting if held not in lost]
        if not self.waiting or (self.alone is not None and self._is_running(self.alone)):
            return None
        if len(self._keeper) > len(self.waiting) + len(self._recorder.locked):
            return None
        self.alone = self.waiting.pop(0)
        return self.alone

    def get_seconds_left(self) -> float:
        """Return how much longer the suspects may wait here."""
        return max(0.0, self._since + ALONE_WITHIN_SECONDS - time.monotonic())

    def take_waiting(self) -> list[Lease]:
        """Remove and return all waiting suspects, to be handed back; no take-over of theirs was counted."""
        waiting, self.waiting = self.waiting, []
        return waiting
