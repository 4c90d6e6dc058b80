"""Which suspects run alone in this process, and when (rule R6). Starts nothing and hands nothing back itself.

Note [Alone]
A task that kills its process takes the others down that run beside it, and all of them look alike afterwards: leased,
lapsed, perhaps with a `running` row. So take-overs are counted, in that row, and only where an execution really begins:
what merely waited in the process that died was not its killer. The first take-over runs like everything else, because
most processes die of a deploy or of the machine. From the second one on an entry runs alone: the process stops
claiming, hands back what has not started, waits for what runs and for its records, and then executes nothing else until
this one has ended and is recorded. So whatever is beside a killer dies with it twice at most, however often the killer
comes back, and never reaches `max_reclaims` by somebody else's fault. The killer itself is lost(poison) after
`max_reclaims` take-overs, and its schedule goes on.

Waiting ends: behind a task that takes hours the suspect is handed back after ALONE_WITHIN_SECONDS, for another worker
or a later try, with a delay that grows, because this process claims nothing meanwhile.
"""

import time

from .held import Held
from .recorder import Recorder
from .trouble import Delays

#: The take-over from which on an entry runs alone.
ALONE_FROM = 2
#: How long a suspect waits for what runs in this process before it is handed back.
ALONE_WITHIN_SECONDS = 10.0
REFUSED_FIRST_MS, REFUSED_MOST_MS = 2_000, 300_000


class Isolation:
    """Who waits for its turn to run alone, and who does. Used by the loop's thread only."""

    def __init__(self, recorder: Recorder, *, max_reclaims: int) -> None:
        """What has ended, and waits in `recorder` for somebody else's lock, is not waited for."""
        self._keeper, self._recorder = recorder.keeper, recorder
        self._alone_from, self._max_reclaims = min(ALONE_FROM, max(1, max_reclaims)), max_reclaims
        #: Those that wait for their turn, and the one that has it.
        self.waiting: list[Held] = []
        self.alone: Held | None = None
        self._since = 0.0
        self._delays = Delays(REFUSED_FIRST_MS, REFUSED_MOST_MS)

    def active(self) -> bool:
        """Say whether nothing else may be claimed or started now: not where `waiting` and `alone` are empty."""
        return bool(self.waiting) or (self.alone is not None and self._running(self.alone))

    def _running(self, alone: Held) -> bool:
        return alone in self._keeper and alone not in self._recorder.locked

    def concerns(self, held: Held) -> bool:
        """Say whether the execution that would begin now has to run alone: not where it is poison, and none begins."""
        return self._alone_from <= held.take_overs <= self._max_reclaims

    def add(self, held: Held) -> None:
        """Let it wait for its turn; its lease is renewed meanwhile, as that of everything that is held."""
        if not self.waiting:
            self._since = time.monotonic()
        self.waiting.append(held)

    def next(self) -> Held | None:
        """Return whose turn it is, once all else of this process has ended and is recorded, or waits for a lock."""
        lost = [held for held in self.waiting if held.lost]
        self._keeper.discard(lost)
        self.waiting = [held for held in self.waiting if held not in lost]
        if not self.waiting or (self.alone is not None and self._running(self.alone)):
            return None
        if len(self._keeper) > len(self.waiting) + len(self._recorder.locked):
            return None
        self.alone = self.waiting.pop(0)
        self._delays.forget(self.alone.member)
        return self.alone

    def seconds_left(self) -> float:
        """Return how long those that wait may still wait here."""
        return max(0.0, self._since + ALONE_WITHIN_SECONDS - time.monotonic())

    def take_waiting(self) -> list[Held]:
        """Return all that wait, to be handed back; none of them was counted."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def delay_ms(self, held: Held) -> int:
        """Return after how long one that waited in vain shall come due again."""
        return self._delays.next(held.member, time.monotonic())
