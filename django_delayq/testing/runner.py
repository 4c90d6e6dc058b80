"""Runs what is due in a test: in its thread, at instants that it chooses, without Redis and without workers."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from django.utils import timezone

from .. import conf, sync
from ..calls.compat import AnyTask
from ..calls.registry import get_task
from ..exceptions import DelayQError
from ..models import Run
from ..recurrence import to_ms
from ..signals import run_finished, run_skipped
from .assertions import Assertions
from .bench import Bench
from .clock import FrozenClock
from .following import Following
from .index import MemoryIndex

#: So many executions and outcomes are taken for a task that enqueues itself for ever.
MOST = 10_000


class Runner(Assertions):
    """A worker in a test, from `with Runner() as delayq:` to the end of the block.

    Meanwhile the clock stands still (`clock.py`, Note [What is frozen]), nothing touches Redis, and nothing runs but
    within `run_due`. Schedules, states, runs and jobs are in the test's database; what the test had enqueued before is
    there from the beginning, and what it enqueues in a transaction that is not committed runs too. Real are: the
    policies, retries, the ledger with its rows, results, signals and errors. Not played: several workers, their deaths,
    leases, and the loss of a server's data.
    """

    def __init__(self, now: datetime | None = None) -> None:
        """`now`: the first instant, by default the real one.

        Raises:
            ValueError: It is naive, in a project with time zones.
        """
        self.clock = FrozenClock(None if now is None else _aware(now))
        self._stack = ExitStack()
        self._running = False
        self._moved = False
        self._last = 0
        self._recorded: list[Run] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(conf.without_redis())
            self.clock.freeze()
            stack.callback(self.clock.thaw)
            index = MemoryIndex("test")
            self.bench = Bench(self.clock, index)
            self.following = Following(index)
            self._last = sync.last_key()
            self.following.connect()
            stack.callback(self.following.disconnect)
            for signal in (run_finished, run_skipped):
                signal.connect(self._note)
                stack.callback(signal.disconnect, self._note)
            self.bench.timeouts.start()
            stack.callback(self.bench.timeouts.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _note(self, run: Run, **kwargs: Any) -> None:
        self._recorded.append(run)

    # -- time

    @property
    def now(self) -> datetime:
        """The instant at which the clock stands, aware, in UTC."""
        return self.clock.now

    def follow(self, move_to: Callable[[datetime], object]) -> None:
        """Tell this function each instant: `move_to` of a time-machine traveller or of a frozen freezegun."""
        self.clock.followers.append(move_to)
        move_to(self.now)

    def start_at(self, when: datetime) -> None:
        """Set the clock anywhere, also back; before anything was run, moved or enqueued.

        Raises:
            ValueError: It is too late for that, or `when` is naive.
        """
        if self._moved or sync.last_key() > self._last:
            raise ValueError("start_at() comes first. The clock has moved, or jobs were enqueued; use move_to().")
        self.clock.set(to_ms(_aware(when)))

    def move_to(self, when: datetime | timedelta) -> None:
        """Let the time pass without any worker: what falls due meanwhile is late. A timedelta counts from now.

        Raises:
            ValueError: It lies before now, or is naive.
        """
        self.clock.set(self._later(when, "move_to"))
        self._moved = True

    def takes(self, task: AnyTask | str, duration: timedelta) -> None:
        """Let each execution of a task take so long by the frozen clock, from now on.

        It is called at its beginning; its outcome stands, and its schedule is busy, until its end. Where that is longer
        than its timeout, it ends by `TaskTimeout` instead of being called.

        Raises:
            UnknownTask: No installed app has a task of this path.
        """
        path = task if isinstance(task, str) else task.module_path
        self.bench.durations[get_task(path).module_path] = duration

    # -- work

    def run_due(self, now: datetime | timedelta | None = None, *, most: int = MOST) -> list[Run]:
        """Run all that is due up to `now`, in order of due time, the clock standing at each of them; then at `now`.

        A timedelta counts from the present instant, None is that instant. What is late already (after `move_to`) is
        judged as late. Returns the runs whose outcome was recorded, skipped ones too, in that order; retries that are
        still to come, and jobs, are not among them: see `enqueued`. What a task raises is in its run or result.

        Raises:
            ValueError: `now` lies before the present instant, or is naive.
            DelayQError: More than `most` steps, or a task calls this.
        """
        until_ms = self._later(now, "run_due")
        if self._running:
            raise DelayQError("run_due() is called by a task that it runs. Call it from the test.")
        self._running = self._moved = True
        self._recorded = []
        try:
            self.following.everything()
            self._run(until_ms, most)
        finally:
            self._running = False
        self.clock.set(until_ms)
        return self._recorded

    def _run(self, until_ms: int, most: int) -> None:
        steps = 0
        while (next_ms := self.bench.next_ms()) is not None and next_ms <= until_ms:
            steps += 1
            if steps > most:
                raise DelayQError(
                    f"{most:,} steps, and it is only {self.now:%Y-%m-%d %H:%M:%S} UTC. Does a task enqueue itself? "
                    "Else choose an earlier instant, or a higher `most`."
                )
            self.clock.set(max(next_ms, self.clock.now_ms))
            self.bench.step()
            self.following.go_on()

    def _later(self, when: datetime | timedelta | None, method: str) -> int:
        if when is None:
            return self.clock.now_ms
        later = self.now + when if isinstance(when, timedelta) else _aware(when)
        if later < self.now:
            raise ValueError(
                f"{method}({later:%Y-%m-%d %H:%M:%S} UTC) would turn the clock back: it is "
                f"{self.now:%Y-%m-%d %H:%M:%S} UTC already. Begin with an earlier instant: Runner(now) or start_at()."
            )
        return to_ms(later)


def _aware(when: datetime) -> datetime:
    """Return an instant in UTC; a naive one is local time where the project has no time zones.

    Raises:
        ValueError: A naive one in a project with time zones.
    """
    if timezone.is_naive(when):
        if conf.use_tz():
            raise ValueError(f"{when!r} is naive. Add the time zone, as in datetime(…, tzinfo=UTC).")
        when = timezone.make_aware(when, timezone.get_default_timezone())
    return when.astimezone(UTC)
