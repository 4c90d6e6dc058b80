"""A soak from its beginning to its verdict."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.faults.harness.oracle import Verdict
from tests.faults.harness.table import Row
from tests.faults.harness.verdict import Stall, decided, row_of

from .arena import Arena, Event
from .edits import edit
from .growth import CALM_SECONDS, Growth, Sampler
from .kinds import ALL, Fault
from .probes import PROBES


@dataclass(slots=True)
class Outcome:
    """What a soak has shown."""

    verdict: Verdict
    events: list[Event]
    growths: list[Growth]
    lease_seconds: float
    stall: float

    def rows(self) -> list[Row]:
        """Return the table: one row per kind of fault, of the points that were due near one, and one of all."""
        rows = [self._row(kind) for kind in sorted({event.kind for event in self.events})]
        return [*rows, row_of("all", self.verdict, note=f"{len(self.events)} faults and edits")]

    def _row(self, kind: str) -> Row:
        events = [event for event in self.events if event.kind == kind]
        windows = [(event.began - 1, event.ended + self.lease_seconds + 1) for event in events]
        measured = [event.recovery for event in events if event.recovery is not None]
        note = f"{len(events)} times" + (f", {len(measured)} measured" if measured else "")
        limit = next((event.limit for event in events if event.limit is not None), None)
        return row_of(kind, self.verdict.during(windows), recovery=max(measured, default=None), limit=limit, note=note)

    def complaints(self, *, timed: bool) -> list[str]:
        """Return what is wrong; nothing where all is well. What is `timed` wants a machine of its own."""
        found = [] if self.verdict.clean else [self.verdict.complaints()]
        late = [event for event in self.events if timed and self._late(event)]
        found += [f"{event.kind}: recovered after {event.recovery:.2f} s" for event in late]
        return found + [f"not flat: {growth}" for growth in self.growths if not growth.flat]

    def _late(self, event: Event) -> bool:
        return event.recovery is not None and event.limit is not None and event.recovery > event.limit + self.stall


def soak(
    arena: Arena, seconds: float, *, faults: Sequence[Fault] = ALL, edits: bool = True, storm_seconds: float = 15.0
) -> Outcome:
    """Let faults happen at random for so long; then end them all, and ask the oracle.

    A storm of faults that overlap, then calm, then one fault alone whose recovery is measured; and again.
    """
    end = time.monotonic() + seconds
    elders = [worker.pid for worker in arena.elders()]
    number = 0
    with Sampler(lambda: elders) as sampler, Stall() as stall:
        arena.pass_time(CALM_SECONDS)
        while time.monotonic() < end:
            _storm(arena, time.monotonic() + storm_seconds, faults, edits)
            arena.calm()
            PROBES[number % len(PROBES)](arena)
            number += 1
            arena.say(_progress(arena, end))
        arena.calm()
        verdict = decided(arena.histories, arena.trace)
    return Outcome(verdict, arena.events, sampler.growths(), arena.lease_seconds, stall.worst)


def _storm(arena: Arena, end: float, faults: Sequence[Fault], edits: bool) -> None:
    while time.monotonic() < end:
        arena.chance.choice(faults)(arena)
        if edits:
            edit(arena)
        arena.pass_time(arena.chance.uniform(0.2, 1.8))


def _progress(arena: Arena, end: float) -> str:
    last = arena.events[-1]
    recovery = "" if last.recovery is None else f", recovered after {last.recovery:.2f} s"
    left = max(0.0, end - time.monotonic())
    return f"{left:5.0f} s left, {len(arena.events)} faults and edits; {last.kind}{recovery}"
