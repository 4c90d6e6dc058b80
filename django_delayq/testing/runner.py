"""Runs due work in a test: in its thread, at chosen instants, without Redis or workers."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from django.utils import timezone

from .. import conf
from ..calls.compat import AnyTask
from ..calls.registry import get_task
from ..exceptions import DelayQError
from ..models import Run
from ..recurrence import to_ms
from ..signals import run_finished, run_skipped
from .assertions import Assertions
from .bench import Bench
from .clock import FrozenClock

#: Maximum steps; more are assumed to be a task that enqueues itself forever.
MOST = 10_000


class Runner(Assertions):
    """A worker in a test, for the block `with Runner() as delayq:`.

    In the block, the clock stands still (`clock.py`, Note [Only Django's time and this package are frozen]), Redis is
    not used, and work runs only in `run_due`. Schedules, states, runs and jobs are in the test's database. Jobs that
    were enqueued before the block, or in a transaction that is not committed, run too. Policies, retries, the ledger,
    results, signals and errors are real. Not emulated: several workers, their deaths, leases, and loss of data.
    """

    def __init__(self, now: datetime | None = None) -> None:
        """`now`: the first instant, by default the real time. Raises ValueError if it is naive while USE_TZ is on."""
        self.clock = FrozenClock(None if now is None else _make_aware(now))
        self._stack = ExitStack()
        self._moved = self._running = False
        self._recorded: list[Run] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(conf.without_redis())
            stack.enter_context(self.clock.frozen())
            self.bench = Bench(self.clock)
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
        """The frozen instant, aware, in UTC."""
        return self.clock.now

    def follow(self, move_to: Callable[[datetime], object]) -> None:
        """Call a function with each instant, such as `move_to` of time-machine or freezegun."""
        self.clock.followers.append(move_to)
        move_to(self.now)

    def start_at(self, when: datetime) -> None:
        """Set the clock to any instant, even a past one. Raises ValueError if it has moved, or `when` is naive."""
        if self._moved:
            raise ValueError("start_at() comes first. The clock has moved; use move_to().")
        self.clock.set(to_ms(_make_aware(when)))

    def move_to(self, when: datetime | timedelta) -> None:
        """Advance the clock as if no worker ran, so that due work becomes late. A timedelta counts from now.

        Raises ValueError if `when` is in the past, or naive.
        """
        later_ms = self._resolve_later(when, "move_to")
        self.bench.index.refresh()  # notes what falls due until then
        self.clock.set(later_ms)
        self._moved = True

    def takes(self, task: AnyTask | str, duration: timedelta) -> None:
        """Set how long each further execution of a task takes by the frozen clock. Raises UnknownTask.

        The task is called at the start; its schedule is busy until the end, when the outcome is recorded. If `duration`
        exceeds the timeout, the task is not called and ends with `TaskTimeout`.
        """
        path = task if isinstance(task, str) else task.module_path
        self.bench.timeouts.durations[get_task(path).module_path] = duration

    # -- work

    def run_due(self, now: datetime | timedelta | None = None, *, most: int = MOST) -> list[Run]:
        """Run all work due up to `now`, in order of due time. The clock is set to each due time, and finally to `now`.

        A timedelta counts from the current instant; None is that instant. Returns the runs whose outcome was recorded,
        in that order, including skipped ones, but no pending retries and no jobs: see `enqueued`. An exception in a
        task is in its run or result. Raises ValueError if `now` is in the past or naive, DelayQError after more than
        `most` steps.
        """
        if self._running:
            raise DelayQError("run_due() is called by a task that it runs.")
        until_ms = self._resolve_later(now, "run_due")
        self._moved, self._recorded, self._running = True, [], True
        try:
            self._run_until(until_ms, most)
        finally:
            self._running = False
        return self._recorded

    def _run_until(self, until_ms: int, most: int) -> None:
        steps = 0
        self.bench.index.refresh()
        while (next_ms := self.bench.find_next_ms()) is not None and next_ms <= until_ms:
            steps += 1
            if steps > most:
                raise DelayQError(
                    f"{most:,} steps, and it is only {self.now:%Y-%m-%d %H:%M:%S} UTC. Does a task enqueue itself? "
                    "Else choose an earlier instant, or a higher `most`."
                )
            self.clock.set(max(next_ms, self.clock.now_ms))
            self.bench.step()
            self.bench.index.refresh()
        self.clock.set(until_ms)

    def _resolve_later(self, when: datetime | timedelta | None, method: str) -> int:
        if when is None:
            return self.clock.now_ms
        later = self.now + when if isinstance(when, timedelta) else _make_aware(when)
        if later < self.now:
            raise ValueError(
                f"{method}({later:%Y-%m-%d %H:%M:%S} UTC) would turn the clock back: it is "
                f"{self.now:%Y-%m-%d %H:%M:%S} UTC already. Begin with an earlier instant: Runner(now) or start_at()."
            )
        return to_ms(later)


def _make_aware(when: datetime) -> datetime:
    """Return an instant in UTC. A naive one is local time, and a ValueError while USE_TZ is on."""
    if timezone.is_naive(when) and conf.is_tz_on():
        raise ValueError(f"{when!r} is naive. Add the time zone, as in datetime(…, tzinfo=UTC).")
    return when.astimezone(UTC)
