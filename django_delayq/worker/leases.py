"""Renews every lease this process holds, from one thread, and tells who lost one. Never gives a lease back itself."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..broker import Broker, JobBroker, Place
from ..exceptions import BrokerError
from ..signals import lease_lost
from .entry import Held
from .jobs.entry import HeldJob

logger = logging.getLogger("django_delayq.worker")

AnyHeld = Held | HeldJob
Some = TypeVar("Some", Held, HeldJob)


class LeaseKeeper:
    """Holds what is claimed. Entries past their deadline count as lost, whatever Redis says (Note [Self-fence]).

    Note [One thread renews]
    Leases are short, so that a dead worker delays its points by little, and tasks may be long. One thread renews, every
    third of a lease, all that this process holds: what runs, what waits for a slot or to run alone, and what waits to
    be recorded. A busy slot cannot starve it, except by C code that keeps the interpreter to itself; then the leases
    lapse, which the process notices by the next rule.

    Note [Self-fence]
    The deadline is taken from this process' monotonic clock when the request was *sent*, so it never lies after the
    lease's real end. A process that was stopped for longer than its lease finds every deadline passed when it wakes up.
    """

    def __init__(self, broker: Broker, jobs: JobBroker, *, lease_seconds: float) -> None:
        self.broker, self.jobs = broker, jobs
        self.lease_seconds = lease_seconds
        self._held: dict[AnyHeld, None] = {}  # in the order of the claims
        self._leaving: set[AnyHeld] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delayq-leases", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is still held runs out by itself."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self.lease_seconds)

    def add(self, held: Iterable[AnyHeld]) -> None:
        """Keep these from now on."""
        with self._lock:
            self._held.update(dict.fromkeys(held))

    def discard(self, held: Iterable[AnyHeld]) -> None:
        """Let these go: they are settled, handed back or lost."""
        with self._lock:
            for item in held:
                self._held.pop(item, None)

    @contextmanager
    def letting_go(self, held: Iterable[AnyHeld]) -> Iterator[None]:
        """Discard these once Redis, which is asked to inside, has let them go; where that fails they stay.

        Redis may have done so before its reply is here: that a renewal does not find them any more is no loss then.
        """
        leaving = set(held)
        with self._lock:
            self._leaving |= leaving
        try:
            yield
            self.discard(leaving)
        finally:
            with self._lock:
                self._leaving -= leaving

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, held: AnyHeld) -> bool:
        return held in self._held

    def _run(self) -> None:
        while not self._stop.wait(self.lease_seconds / 3):
            self.round()

    def round(self) -> None:
        """Renew everything held; what cannot be renewed ends with its deadline. Never raises."""
        try:
            self.renew_all()
        except BrokerError as error:
            logger.warning("Leases could not be renewed: %s", error)
            self._expire()
        except Exception:
            logger.exception("Leases could not be renewed")
            self._expire()

    def renew_all(self) -> None:
        """Renew everything held, one script per shard and batch."""
        with self._lock:
            everything = list(self._held)
        points: dict[Place, list[Held]] = {}
        jobs: dict[Place, list[HeldJob]] = {}
        for held in everything:
            if isinstance(held, HeldJob):
                jobs.setdefault(held.place, []).append(held)
            else:
                points.setdefault(held.place, []).append(held)
        size = self.broker.config.batch_size
        for place, entries in points.items():
            for at in range(0, len(entries), size):
                self.prove(place, entries[at : at + size])
        for place, held_jobs in jobs.items():
            for at in range(0, len(held_jobs), size):
                self.prove_jobs(place, held_jobs[at : at + size])
        self._expire()

    def prove(self, place: Place, entries: list[Held]) -> list[Held]:
        """Renew these leases and return those that are still ours; the others are marked as lost.

        Raises:
            BrokerError: Nothing is known; deadlines stand as they were.
        """
        sent = time.monotonic()
        lost = self.broker.renew(place, [held.lease() for held in entries], lease_ms=int(self.lease_seconds * 1000))
        return self._proven(entries, lost, sent)

    def prove_jobs(self, place: Place, entries: list[HeldJob], *, start: bool = False) -> list[HeldJob]:
        """Do `prove` for jobs. `start`: a take-over of each begins, and is counted; see `JobBroker.renew`."""
        if not entries:
            return []
        sent, lease_ms = time.monotonic(), int(self.lease_seconds * 1000)
        lost = self.jobs.renew(place, [(held.member, held.fence) for held in entries], lease_ms=lease_ms, start=start)
        return self._proven(entries, lost, sent)

    def _proven(self, entries: list[Some], lost: set[str], sent: float) -> list[Some]:
        kept = []
        for held in entries:
            if held.member in lost:
                self._mark_lost(held)
            else:
                held.deadline = sent + self.lease_seconds
                kept.append(held)
        return kept

    def _expire(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [held for held in self._held if held.deadline <= now]
        for held in late:
            self._mark_lost(held)

    def _mark_lost(self, held: AnyHeld) -> None:
        with self._lock:
            if held in self._leaving:
                return
            mine = held in self._held and not held.lost.is_set()
        held.lost.set()
        if mine:
            logger.warning("Lost the lease of %s in %s; another worker may take it over.", held.member, held.place)
            lease_lost.send_robust(sender=type(self), member=held.member, queue=held.place.queue)
