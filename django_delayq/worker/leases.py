"""Renews every lease this process holds, from one thread, and tells who lost one. Never gives a lease back itself."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from .. import tracing
from ..broker import Shard
from ..exceptions import BrokerError
from ..grouping import grouped
from ..side_channels import send
from ..signals import lease_lost
from .held import Held

logger = logging.getLogger("django_delayq.worker")

Renew = Callable[[Shard, Sequence[Held]], set[str]]


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

    def __init__(
        self, renew: Renew, *, lease_seconds: float, batch_size: int, wake: Callable[[], None] = lambda: None
    ) -> None:
        """`renew` extends leases of a shard, and returns the lost members; `wake` has the loop see `untold`."""
        self._renew = renew
        self.lease_seconds, self.batch_size, self._wake = lease_seconds, batch_size, wake
        #: Calls of receivers. The thread that renews does not make them: a receiver that blocks would cost all leases.
        self.untold: deque[Callable[[], None]] = deque()
        self._held: dict[Held, None] = {}  # in the order of the claims
        self._leaving: set[Held] = set()
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

    def add(self, held: Iterable[Held]) -> None:
        """Keep these from now on."""
        with self._lock:
            self._held.update(dict.fromkeys(held))

    def discard(self, held: Iterable[Held]) -> None:
        """Let these go: they are settled, handed back or lost."""
        with self._lock:
            for item in held:
                self._held.pop(item, None)

    @contextmanager
    def letting_go(self, held: Iterable[Held]) -> Iterator[None]:
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

    def __contains__(self, held: Held) -> bool:
        return held in self._held

    @tracing.quiet()
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
        """Renew everything held, one script per shard and batch.

        Raises:
            BrokerError: Nothing is known of the others; their deadlines stand as they were.
        """
        with self._lock:
            everything = list(self._held)
        for shard, entries in grouped(everything, lambda held: held.shard).items():
            for at in range(0, len(entries), self.batch_size):
                batch = entries[at : at + self.batch_size]
                sent = time.monotonic()
                lost = self._renew(shard, batch)
                for held in batch:
                    if held.member in lost:
                        self._mark_lost(held)
                    else:
                        held.deadline = sent + self.lease_seconds
        self._expire()

    def _expire(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [held for held in self._held if held.deadline <= now]
        for held in late:
            self._mark_lost(held)

    def lose(self, held: Iterable[Held]) -> None:
        """Let go of what Redis says to be somebody else's, and tell."""
        for item in held:
            self._mark_lost(item)
            self.discard([item])

    def _mark_lost(self, held: Held) -> None:
        with self._lock:
            if held in self._leaving:
                return
            mine = held in self._held and not held.lost
        held.lost = True
        if mine:
            logger.warning("Lost the lease of %s in %s; another worker may take it over.", held.member, held.shard)
            told = {"sender": type(self), "member": held.member, "queue": held.shard.queue}
            self.untold.append(partial(send, lease_lost, "lease_lost", cut=BaseException, **told))
            self._wake()
