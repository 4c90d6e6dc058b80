"""What a worker does beside its runs: guard the prefix, rebuild after a flush, sweep, say that it lives, hear hints."""

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from django.db import DatabaseError, connections

from .. import ledger, mirror
from ..broker import Broker, Place
from ..exceptions import BrokerError, BrokerUnavailable, DamagedKeys, ForeignLayout
from .backoff import Backoff

logger = logging.getLogger("django_delayq.worker")

DELTA_SECONDS = 2.0
FULL_SECONDS = 600.0
HEARTBEAT_SECONDS = 30.0
HINT_TIMEOUT_SECONDS = 1.0


class Upkeep:
    """Two threads of their own, so that a long rebuild delays no claim. Neither ever ends on an error."""

    def __init__(
        self,
        broker: Broker,
        places: Sequence[Place],
        *,
        wake: Callable[[], None],
        hinted: Callable[[tuple[Place, int]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.broker = broker
        self.places = places
        self._wake = wake
        self._hinted = hinted
        self._fail = fail
        self._stop = threading.Event()
        self._nudge = threading.Event()
        self._rebuild = threading.Event()
        self._check_layout = threading.Event()
        self._threads: list[threading.Thread] = []

    # -- life

    def begin(self, *, burst: bool, stopping: Callable[[], bool]) -> None:
        """Make sure of the prefix and the server, rebuild where needed, and start the threads.

        Waits for a Redis that does not answer, saying so; in burst mode that is an error.

        Raises:
            ForeignLayout: The prefix is somebody else's.
            BrokerError: Redis would evict our keys; or, in burst mode, does not answer.
        """
        backoff = Backoff()
        while not stopping():
            try:
                self._prepare(burst)
                break
            except DamagedKeys as error:
                self._repair(error)
                if not backoff.failed(time.monotonic()):
                    time.sleep(1)
            except (BrokerUnavailable, DatabaseError) as error:
                if burst:
                    raise
                if backoff.failed(time.monotonic()):
                    where = "CACHES" if isinstance(error, BrokerUnavailable) else "DATABASES"
                    logger.error("%s. Waiting for it. Is the address in %s right?", str(error).strip(" .\n"), where)
                connections.close_all()
                time.sleep(min(1.0, max(0.0, backoff.until - time.monotonic())))
        if not burst and not stopping():
            for target in (self._run, self._listen):
                thread = threading.Thread(target=target, name=f"delayq-{target.__name__}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _prepare(self, burst: bool) -> None:
        policy = self.broker.info("memory").get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise BrokerError(
                f"Redis has maxmemory-policy {policy!r} and would evict schedules. "
                "Set it to noeviction (redis.conf or CONFIG SET maxmemory-policy noeviction), or use another server."
            )
        ledger.check_tables()
        mirror.check_layout(self.broker)
        self._rebuild_missing()
        if burst:  # nobody sweeps later
            mirror.full_sweep(self.broker)
        else:
            mirror.delta_sweep(self.broker)
        self.broker.heartbeat(self.broker.now_ms(), self._details())

    def _details(self) -> str:
        return json.dumps({"queues": sorted({place.queue for place in self.places}), "started": round(time.time())})

    def end(self) -> None:
        """Stop the threads."""
        self._stop.set()
        self._nudge.set()
        for thread in self._threads:
            thread.join(timeout=2)

    def farewell(self) -> None:
        """Take this worker off the list, where Redis is there to hear it."""
        try:
            self.broker.farewell()
        except BrokerError as error:
            logger.debug("No farewell: %s", error)

    # -- asked by the loop

    def rebuild_soon(self) -> None:
        """A shard has no epoch: Redis was flushed."""
        self._rebuild.set()
        self._nudge.set()

    def redis_is_back(self) -> None:
        """Redis was away: it may be another server, or an older snapshot. Compare everything."""
        self._check_layout.set()
        self._nudge.set()

    # -- the sweeping thread

    def _run(self) -> None:
        now = time.monotonic()
        due = {"delta": now + DELTA_SECONDS, "full": now, "beat": now + HEARTBEAT_SECONDS}
        backoff = Backoff()
        while not self._stop.is_set():
            self._nudge.wait(max(0.0, max(backoff.until, min(due.values())) - time.monotonic()))
            self._nudge.clear()
            if self._stop.is_set():
                break
            if backoff.until > time.monotonic():
                self._stop.wait(backoff.until - time.monotonic())
                continue
            try:
                self._round(due)
                backoff.worked()
            except DamagedKeys as error:
                self._repair(error)
                backoff.failed(time.monotonic())
            except ForeignLayout as error:
                self._fail(error)
                break
            except (BrokerError, DatabaseError) as error:
                connections.close_all()
                if backoff.failed(time.monotonic()):
                    logger.warning("The mirror could not be swept: %s", str(error).strip())
            except Exception:
                backoff.failed(time.monotonic())
                logger.exception("The mirror could not be swept")
        connections.close_all()

    def _round(self, due: dict[str, float]) -> None:
        now = time.monotonic()
        if self._check_layout.is_set():
            mirror.check_layout(self.broker)
            self._check_layout.clear()
            due["full"] = now
        if self._rebuild.is_set():
            mirror.check_layout(self.broker)
            self._rebuild.clear()
            self._rebuild_missing()
            self._wake()
        if now >= due["beat"]:
            self.broker.heartbeat(self.broker.now_ms())
            due["beat"] = now + HEARTBEAT_SECONDS
        if now >= due["delta"]:
            mirror.delta_sweep(self.broker)
            due["delta"] = now + DELTA_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the workers
        if now >= due["full"]:
            mirror.check_layout(self.broker)
            report = mirror.full_sweep(self.broker)
            for line in report.lines[:20]:
                logger.info("Mirror mended: %s", line)
            due["full"] = now + FULL_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the workers

    def _rebuild_missing(self) -> None:
        epochs = self.broker.epochs(self.places)
        missing = [place for place, epoch in zip(self.places, epochs, strict=True) if epoch is None]
        if missing:
            mirror.rebuild(self.broker, missing)

    def _repair(self, error: DamagedKeys) -> None:
        logger.error("%s", error)
        for place in self.places:
            try:
                names = self.broker.repair(place)
            except BrokerError as failure:
                logger.error("Could not repair %s: %s", place, failure)
                return
            if names:
                logger.error("Deleted %s, which something else wrote; it is rebuilt.", ", ".join(names))
                self.rebuild_soon()

    # -- the listening thread

    def _listen(self) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                for hint in self.broker.hints(timeout_seconds=HINT_TIMEOUT_SECONDS):
                    backoff.worked()
                    if self._stop.is_set():
                        return
                    if hint is not None:
                        self._hinted(hint)
            except Exception as error:
                backoff.failed(time.monotonic())
                logger.debug("No hints: %s", error)
            self._stop.wait(max(0.0, backoff.until - time.monotonic()))
