"""Real worker processes with a log of their own, and a fleet that is kept at its number."""

import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self

from tests.acceptance.support import PATIENCE_SECONDS, start_worker, wait_until

from .proxy import Proxy
from .streams import STREAMS
from .usage import state_of

_numbers = itertools.count(1)
#: A lease that ends soon, for tests in which somebody takes over. Nothing may be asserted there that a worker loses by
#: being slow for so long.
LEASE = 1
#: A lease that does not end: what only its end would mend never happens.
ENDLESS = 3600


class WorkerProcess:
    """One `delayq_worker`. `options` are keys of DELAYQ; `redis_url` leads it through a proxy.

    `failpoints` is the text of DELAYQ_FAILPOINTS. It is killed at the end of the `with`, if it is still there.
    Forked off a warm process, unless it is to be `cold`. `broken` says how its side channels fail: see broken.py.
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        redis_url: str | None = None,
        failpoints: str = "",
        environment: dict[str, str] | None = None,
        broken: str = "",
        **options: Any,
    ) -> None:
        self._streams = ExitStack()  # a pipe that no process reads stays open until its end
        self.log_file = folder / f"worker-{next(_numbers)}.log"
        variables = dict(environment or {})
        if redis_url:
            variables["DELAYQ_REDIS_URL"] = redis_url
        if failpoints:
            variables["DELAYQ_FAILPOINTS"] = failpoints
        with self.log_file.open("wb") as log:
            output: IO[bytes] = log
            if broken:
                stream, redirect = STREAMS[broken]
                output = self._streams.enter_context(stream())
                variables |= {"DELAYQ_TEST_BROKEN": broken, "DELAYQ_TEST_BROKEN_LOG": str(self.log_file)}
                options |= {"cold": True, "redirect": redirect, "TRACES": True}
            self.process = start_worker(*arguments, output=output, environment=variables, **options)
        self.started_at = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()
        print(f"-- {self.log_file.name}, process {self.pid}, said:", self.log()[-3000:], sep="\n")

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def name(self) -> str:
        """What it calls itself; empty before it has said so."""
        with self.log_file.open(errors="replace") as file:
            found = re.search(r"Worker (\S+): ", file.read(2000))
        return found[1] if found else ""

    @property
    def alive(self) -> bool:
        """Whether it runs, stopped ones included."""
        return self.process.poll() is None

    def log(self) -> str:
        """Return all that it has printed."""
        return self.log_file.read_text(errors="replace")

    def begun(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until it has told its first line, which is written before its first claim; say whether it still runs."""
        wait_until(lambda: not self.alive or self.name, seconds, f"a start: {self.log()[-500:]}")
        return self.alive

    def ready(self, seconds: float = PATIENCE_SECONDS) -> Self:
        """Return once it has begun, and not ended at once."""
        assert self.begun(seconds), self.log()[-2000:]
        return self

    def send(self, number: int) -> float:
        """Send a signal; return the wall clock's second at which it was sent."""
        now = time.time()
        os.kill(self.pid, number)
        return now

    def kill(self) -> float:
        """Kill -9; return when."""
        now = self.send(signal.SIGKILL)
        self.process.wait()
        return now

    def term(self) -> float:
        """Send SIGTERM; return when."""
        return self.send(signal.SIGTERM)

    def stop(self) -> float:
        """Stop it with SIGSTOP; return when it had stopped."""
        self.send(signal.SIGSTOP)
        wait_until(lambda: self.stopped() or not self.alive, 5, "SIGSTOP")  # it may end at this very moment
        return time.time()

    def resume(self) -> float:
        """Let it go on."""
        return self.send(signal.SIGCONT)

    def stopped(self) -> bool:
        """Whether it has been stopped by SIGSTOP."""
        return state_of(self.pid) == "T"

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its end and return its exit status."""
        return self.process.wait(seconds)

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.alive:
            with suppress(ProcessLookupError):
                self.process.kill()
        self.process.wait()
        self._streams.close()


class Fleet:
    """`size` workers alike. `tend()` replaces the dead ones; nobody else does. Behind several proxies, each in turn.

    `broken` says for the number of each how its side channels fail.
    """

    def __init__(self, size: int, *arguments: str, folder: Path, proxies: Sequence[Proxy] = (),
        broken: Callable[[int], str] = lambda number: "", **how: Any,
    ) -> None:  # fmt: skip
        self._broken = broken
        self._arguments, self._folder, self._proxies, self._how = arguments, folder, proxies, how
        self.workers: list[WorkerProcess] = [self._new(number) for number in range(size)]
        self.ended: list[WorkerProcess] = []

    def _new(self, number: int) -> WorkerProcess:
        url = self._proxies[number % len(self._proxies)].url if self._proxies else None
        return WorkerProcess(
            *self._arguments, folder=self._folder, redis_url=url, broken=self._broken(number), **self._how
        )

    def __enter__(self) -> Self:
        try:
            for worker in self.workers:
                worker.begun()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self.workers:
            worker.end()
        for worker in [*self.ended[-3:], *self.workers]:
            print(f"-- {worker.log_file.name}, process {worker.pid}, said:", worker.log()[-1500:], sep="\n")

    def tend(self) -> int:
        """Replace those that have ended; return how many were."""
        gone = [number for number, worker in enumerate(self.workers) if not worker.alive]
        for number in gone:
            self.workers[number].end()
            self.ended.append(self.workers[number])
            self.workers[number] = self._new(number)
        return len(gone)

    def stop(self, seconds: float = PATIENCE_SECONDS) -> list[int]:
        """Ask all for a drain and return their exit statuses."""
        for worker in self.workers:
            if worker.alive:
                worker.term()
        return [worker.wait(seconds) for worker in self.workers]
