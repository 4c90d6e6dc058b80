"""Waiting for the end of jobs, for all threads and event loops of a process over one connection. Enqueues nothing.

Note [Told, and looked for]
Whoever waits first says so here (`Listener.join`), then in Redis, in one script that also says whether the job is still
there (`job_watch.lua`), and reads the result only where it is not, or once its end was told. The listener looks after
all that wait each time that its subscription is confirmed: so whoever came before that is looked after then, and
whoever came later is told. Between two looks it waits for messages. A message may be lost all the same, with a
connection or a failover. So the same script asks for all of them every LOOK_SECONDS, a round trip for any number of
waits, which also keeps their names in Redis. The database is asked only where Redis says that a job is not there, and
each time by the one who waits: for a durable one that is not put there yet, or was flushed, that is every LOOK_SECONDS
too.
"""

import asyncio
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from .. import conf, ledger, tracing
from ..compat import AnyResult, TaskResultDoesNotExist
from ..context import EXECUTING
from ..exceptions import BrokerUnavailable, ResultTimeout, WaitRefused
from ..jobs import parse_id
from .sending import shared

logger = logging.getLogger("django_delayq.backend")

#: So often it is looked after what was not told; for so long a name stands in Redis.
LOOK_SECONDS = 5.0
WATCHED_MS = 30_000
#: The listener reads no longer than this without looking at the clock; without anybody who waits it ends after so long.
READ_SECONDS = 1.0
IDLE_SECONDS = 10.0
#: What failed is tried again after so long.
AGAIN_SECONDS = 1.0

Item = tuple[str, str]


class Listener:
    """Hears of ends, for all that wait in this process. Has a thread while somebody waits, and for a while after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[Item, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def join(self, queue: str, member: str, wake: Callable[[], None]) -> Iterator[None]:
        """Have `wake` be called in another thread when this job may have ended, until the block ends."""
        with self._lock:
            self._waits.setdefault((queue, member), []).append(wake)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="delayq-ends", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                wakes = self._waits[queue, member]
                wakes.remove(wake)
                if not wakes:
                    del self._waits[queue, member]

    def _waited(self) -> list[Item]:
        with self._lock:
            return list(self._waits)

    def _wake(self, items: list[Item]) -> None:
        with self._lock:
            wakes = [wake for item in items for wake in self._waits.get(item, ())]
        for wake in wakes:
            wake()

    @tracing.quiet()
    def _run(self) -> None:
        while not self._is_over():
            try:
                self._listen()
            except Exception as error:  # whoever waits has a timeout
                logger.debug("No ends are told: %s", error)
                time.sleep(AGAIN_SECONDS)

    def _is_over(self) -> bool:
        """Say whether nobody waits, so that the thread ends."""
        with self._lock:
            if self._waits:
                return False
            self._thread = None
            return True

    def _listen(self) -> None:
        """Wake whoever waits for what has ended. See Note [Told, and looked for]."""
        look_at, busy_until = 0.0, time.monotonic() + IDLE_SECONDS
        broker = shared().jobs.broker
        for ended in broker.ends(timeout_seconds=READ_SECONDS):
            names, now = set(ended), time.monotonic()
            if shared().jobs.broker is not broker:  # other settings
                return
            waited = self._waited()
            if names:
                self._wake([item for item in waited if item[1] in names])
            if waited:
                busy_until = now + IDLE_SECONDS
            elif now >= busy_until:
                return
            if now >= look_at:
                standing = shared().watch(waited, for_ms=WATCHED_MS)
                self._wake([item for item in waited if item[1] not in standing])
                look_at = time.monotonic() + LOOK_SECONDS


_listener = Listener()


def _forget() -> None:
    global _listener
    _listener = Listener()


os.register_at_fork(after_in_child=_forget)  # a fork has no thread of its parent's


class Wait:
    """One wait for one job: what it looks at, and until when."""

    def __init__(self, result: AnyResult, timeout: float | timedelta | None, *, on_commit: bool) -> None:
        """`on_commit`: jobs of this alias are sent after the commit.

        Raises:
            ValueError, TypeError: The timeout is none.
            TaskResultDoesNotExist: The id of the result is none of ours.
        """
        parsed = parse_id(result.id)
        if parsed is None:
            raise TaskResultDoesNotExist(result.id)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"A timeout is 0 or more seconds, or None for none, not {timeout!r}.")
        self.result, self.timeout, self._on_commit = result, seconds, on_commit
        self.queue, self.member = parsed
        self._end = None if seconds is None else time.monotonic() + seconds
        if not result.is_finished and EXECUTING.get() is not None:
            warnings.warn(
                f"A task waits for the job {result.id}, and its slot waits with it: where all slots do, none is left "
                "for the jobs that they wait for. Split the task, or let on_success enqueue what follows.",
                RuntimeWarning,
                stacklevel=5,
            )

    @property
    def left(self) -> float | None:
        """For how many seconds it may still wait."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def look(self, *, told: bool = False) -> bool:
        """Say whether the job has ended; its result is refreshed then. `told`: that was heard, or the time is over.

        Raises:
            WaitRefused, TaskResultDoesNotExist, BrokerError: See `JobResult.wait`.
        """
        try:
            if told and self._read():
                return True
            there = shared().watch([(self.queue, self.member)], for_ms=WATCHED_MS)
            if there or self._read():
                return not there
        except BrokerUnavailable:
            if _in_transaction():
                raise
            return False
        if _in_transaction():
            raise self._refusal()
        return False

    def _read(self) -> bool:
        try:
            self.result.refresh()
        except TaskResultDoesNotExist:
            if self._on_commit and _in_transaction():
                raise self._refusal() from None
            raise
        return self.result.is_finished

    def need_not_wait(self) -> bool:
        """Say whether the job has ended as far as this process knows.

        Raises:
            WaitRefused: Redis is sent nothing here, and the job has not ended.
        """
        if self.result.is_finished:
            return True
        if conf.get_config().mirror:
            return False
        if self._read():
            return True
        raise WaitRefused(
            f"{conf.why_no_redis()}, so that no worker executes the job {self.result.id}. Run it first: "
            "django_delayq.testing has a Runner for tests."
        )

    def _refusal(self) -> WaitRefused:
        return WaitRefused(
            f"The job {self.result.id} is not sent yet, or Redis has lost it, and a transaction is open here: what is "
            "enqueued in it is sent after its commit. Wait outside of the transaction."
        )

    def over(self) -> ResultTimeout:
        """Return what to raise when the time is over."""
        return ResultTimeout(f"The job {self.result.id} has not ended within {self.timeout:g} s. It goes on.")


def wait(result: AnyResult, timeout: float | timedelta | None, *, on_commit: bool = False) -> None:
    """See `JobResult.wait`."""
    this, woken = Wait(result, timeout, on_commit=on_commit), threading.Event()
    if this.need_not_wait():
        return
    with _listener.join(this.queue, this.member, woken.set):
        told = False
        while not this.look(told=told):
            told = woken.wait(this.left)
            woken.clear()
            if not told:
                if this.look(told=True):
                    return
                raise this.over()


async def await_(result: AnyResult, timeout: float | timedelta | None, *, on_commit: bool = False) -> None:
    """See `JobResult.await_`."""
    this, woken = Wait(result, timeout, on_commit=on_commit), asyncio.Event()
    loop: Any = asyncio.get_running_loop()
    look = sync_to_async(this.look)
    if await sync_to_async(this.need_not_wait)():
        return

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    with _listener.join(this.queue, this.member, wake):
        told = False
        while not await look(told=told):
            try:
                await asyncio.wait_for(woken.wait(), this.left)
            except TimeoutError:
                if await look(told=True):
                    return
                raise this.over() from None
            told = True
            woken.clear()


def _in_transaction() -> bool:
    return bool(connections[ledger.database()].in_atomic_block)
