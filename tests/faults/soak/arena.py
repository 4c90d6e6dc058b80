"""Where a soak takes place: server, proxies, workers, schedules, and the faults that are under way."""

import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings
from django.test import override_settings

from tests.faults.harness import database
from tests.faults.harness.load import SECOND, mixture
from tests.faults.harness.load import schedules as make
from tests.faults.harness.oracle import History
from tests.faults.harness.proxy import Proxy
from tests.faults.harness.servers import Server, pointing_at
from tests.faults.harness.trace import Trace
from tests.faults.harness.workers import Fleet, WorkerProcess
from tests.receiving import Receiver

#: How the side channels of half the workers fail that are not elders.
BROKEN = ("", "", "", "raises", "blocks", "gone")
#: For so long: a little before a task, since what is taken over is to begin in time; longer than the lease after some.
BLOCKS = "0.05 6 0.02"


@dataclass(slots=True)
class Event:
    """One fault: when it began and ended, in seconds of the wall clock, and how long its points took to go on."""

    kind: str
    began: float
    ended: float = 0.0
    recovery: float | None = None
    limit: float | None = None


@dataclass(slots=True)
class Arena:
    """Everything a fault may take hold of. `locked` and `redis_up` tell what is away at the moment."""

    chance: random.Random
    folder: Path
    lease_seconds: float
    server: Server
    proxies: list[Proxy]
    fleet: Fleet
    trace: Trace
    histories: list[History]
    #: Of so many workers one is never ended, so that its memory can be watched. It suffers everything else.
    elder_of: int = 3
    events: list[Event] = field(default_factory=list)
    redis_up: bool = True
    locked: bool = False
    say: Callable[[str], None] = print
    _ends: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    # -- faults that last

    def note(self, kind: str) -> Event:
        """Note that a fault begins now."""
        now = time.time()
        event = Event(kind, now, now)
        self.events.append(event)
        return event

    def later(self, seconds: float, event: Event, end: Callable[[], None]) -> None:
        """End a fault after so many seconds."""

        def finish() -> None:
            end()
            event.ended = time.time()

        heapq.heappush(self._ends, (time.monotonic() + seconds, next(self._numbers), finish))

    def pass_time(self, seconds: float) -> None:
        """Let time go by: faults end when they are to, the dead are replaced."""
        until = time.monotonic() + seconds
        while True:
            while self._ends and self._ends[0][0] <= time.monotonic():
                heapq.heappop(self._ends)[2]()
            self.fleet.tend()
            rest = until - time.monotonic()
            if rest <= 0:
                return
            time.sleep(min(0.05, rest))

    def calm(self) -> None:
        """End every fault that is under way, and give the workers time to find their feet."""
        while self._ends:
            heapq.heappop(self._ends)[2]()
        for proxy in self.proxies:
            proxy.calm()
        self.pass_time(self.lease_seconds + 2)

    # -- who may be hit

    def mortal(self) -> list[WorkerProcess]:
        """Return the workers that may be ended: those that are up, but for the elders."""
        return [
            worker
            for number, worker in enumerate(self.fleet.workers)
            if number % self.elder_of != 0 and worker.alive and worker.name
        ]

    def elders(self) -> list[WorkerProcess]:
        """Return the workers that are never ended."""
        return self.fleet.workers[:: self.elder_of]

    def history(self) -> History:
        """Return the history of some schedule that is still there."""
        return self.chance.choice([history for history in self.histories if not history.deleted])


@contextmanager
def arena(
    folder: Path, *, workers: int, schedules: int, lease_seconds: float, seed: int, elder_of: int = 3
) -> Iterator[Arena]:
    """Set everything up, and take it down again."""
    kept = folder / "aof"
    kept.mkdir()
    trace = Trace(folder / "trace")
    with ExitStack() as stack:
        server = stack.enter_context(Server(kept, ("--appendfsync", "everysec")))
        stack.enter_context(pointing_at(server.url))
        proxies = [stack.enter_context(Proxy(server.socket)) for _ in range(2)]
        histories = mixture(schedules, trace)
        kinds = {"task": "tests.faults.tasks.misbehave", "every": 5 * SECOND}
        histories += make(max(1, schedules // 50), trace, name="misbehaving-", **kinds)
        silent = stack.enter_context(Receiver())
        silent.delay_seconds = 60.0
        alerts = {"ALERTS": {"HOSTS": [silent.host]}}
        stack.enter_context(override_settings(DELAYQ={**settings.DELAYQ, **alerts}))
        histories += make(max(1, schedules // 50), trace, name="pinged-", ping_url=silent.url)
        chance = random.Random(seed)
        fleet = Fleet(
            workers, folder=folder, proxies=proxies, LEASE_SECONDS=lease_seconds,
            environment={**database.LOCK_SECONDS, "DELAYQ_TEST_BROKEN_SECONDS": BLOCKS},
            broken=lambda number: chance.choice(BROKEN) if number % elder_of else "",
        )  # fmt: skip
        stack.enter_context(fleet)
        yield Arena(chance, folder, lease_seconds, server, proxies, fleet, trace, histories, elder_of)
