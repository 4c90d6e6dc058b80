"""What a worker does beside its runs: guard the prefix, rebuild after a flush, sweep, say that it lives, hear hints.

Note [One lease]
One worker at a time does what several would only do several times: full sweeps, rebuilds, pruning, sums of minutes,
looks for alerts. It holds the key `<prefix>:upkeep` for `broker.UPKEEP_MS` and renews it every RENEW_SECONDS
and after each page of the long chores. The others look when the lease would end, so that a holder that dies
is replaced within these seconds; a holder that has lost the lease stops after the page that it is at.
A worker that finds a shard flushed waits for no lease: it takes this over and rebuilds (`sync/rebuild.py`, Note [One
worker rebuilds]). A worker that takes the lease because it is free rebuilds first what a dead holder has left.
The lease only saves work: what is done twice does no harm. What must not wait for the end of a dead holder's lease each
worker does for itself: delta sweeps.
"""

import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, Error, connections

from .. import conf, ledger, sync
from ..calls import tracing
from ..exceptions import BrokerError, BrokerUnavailable
from ..index import Broker, Shard, probe
from ..index.connection import DamagedKeys
from ..index.probe import UnfitServer
from ..monitoring import alerts, minutes
from ..sync import pruning
from ..sync.layout import ForeignLayout, OtherLayout, OutdatedRelease, PendingMigrations
from ..text import redact_text
from .trouble import Backoff, forget_frames, repair

logger = logging.getLogger("django_delayq.worker")

DELTA_SECONDS = 2.0
#: A full sweep is due so long after the last one; see `sync/swept.py`, Note [When a full sweep is due].
FULL_SECONDS = sync.FULL_SECONDS
#: Each worker says so often that it lives, and the holder of the lease looks whether a full sweep or a pass of pruning
#: is due: the sweep also because Redis was replaced.
HEARTBEAT_SECONDS = 30.0
#: So often the holder of the lease renews it, and moves what was counted.
RENEW_SECONDS, MINUTE_SECONDS = 7.0, 60.0
HINT_TIMEOUT_SECONDS = 1.0
#: So often a worker looks whether what it waits for at its start has come.
WAIT_SECONDS = 1.0
#: A worker in burst mode prunes for so long before it begins; others do beside their work.
BURST_PRUNE_SECONDS = 2.0


class Upkeep:
    """Two threads of their own, so that a long rebuild delays no claim. Neither ever ends on an error."""

    def __init__(
        self,
        broker: Broker,
        shards: Sequence[Shard],
        *,
        wake: Callable[[], None],
        hinted: Callable[[tuple[Shard, int]], None],
        fail: Callable[[Exception], None],
        describe: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.broker, self.shards = broker, shards
        self._wake, self._hinted, self.fail, self._describe = wake, hinted, fail, describe
        self._stop, self._nudge = threading.Event(), threading.Event()
        self._rebuild, self._check_layout = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._due = dict.fromkeys(("delta", "beat", "lease"), 0.0)  # monotonic seconds
        self._due |= dict.fromkeys(("build", "look", "minutes"), math.inf)  # two of them for the holder of the lease
        #: Whether this worker holds the upkeep lease, as far as it knows. See Note [One lease].
        self.holds = False
        self._started = round(time.time())
        self._beat_ms = 0  # the server's clock at the last heartbeat
        self._said: set[str] = set()  # what was warned of
        #: How many rebuilds of a flushed index were brought to their end here.
        self.rebuilds = 0
        self._examined: str | None = None  # the run ids of the servers that were found fit
        self._backoff = Backoff()

    # -- life

    def begin(self, *, burst: bool, stopping: Callable[[], bool]) -> None:
        """Make sure of the prefix and the server, rebuild where needed, and start the threads.

        Waits for a Redis that does not answer, for `migrate`, and for workers that must end first, saying so; in burst
        mode that is an error.

        Raises:
            ForeignLayout: The prefix is somebody else's.
            OutdatedRelease: See `sync.check_release`.
            UnfitServer: See `probe.py`.
            BrokerError: The login is refused; or, in burst mode, Redis does not answer.
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
            except (OtherLayout, PendingMigrations) as error:
                self._leave()
                if burst:
                    raise
                if str(error) not in self._said:
                    self._said.add(str(error))
                    logger.warning("%s", error)
                connections.close_all()
                time.sleep(WAIT_SECONDS)
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
        self._examined = probe.examine(self.broker, self._said)
        ledger.check_tables()
        sync.take_layout(self.broker)
        self._build()
        sync.delta_sweep(self.broker)
        if burst:  # there is no thread that does it later
            self._hold()
            if self.holds:
                self._count_up()
                sync.sweep_if_due(self.broker, go_on=lambda checked: self._keep())
                self._prune(seconds=BURST_PRUNE_SECONDS)
                self._look()
                self._let_go()
        self.broker.heartbeat(self.broker.now_ms(), self._details())
        sync.check_layout(self.broker)  # once more: see `sync/switch.py`, Note [Said before it is looked]

    def _details(self) -> str:
        queues = sorted({shard.queue for shard in self.shards})
        own = sync.own_layout(self.broker)
        told = {"queues": queues, "started": self._started, "layout": own.version, "shards": own.shards}
        return json.dumps({**told, **self._describe()})

    def end(self) -> None:
        """Stop the threads."""
        self._stop.set()
        self._nudge.set()
        for thread in self._threads:
            thread.join(timeout=2)

    def farewell(self) -> None:
        """Stop the threads; take this worker off the list and give its lease back, where Redis answers."""
        self._stop.set()
        self._leave()

    def _leave(self) -> None:
        try:
            self.broker.farewell()
            self._let_go()
        except BrokerError as error:
            logger.debug("No farewell: %s", error)

    # -- asked by the loop

    def rebuild_soon(self) -> None:
        """A shard has no epoch: Redis was flushed."""
        self._rebuild.set()
        self._nudge.set()

    def redis_is_back(self) -> None:
        """Redis was away: it may be another server, with older data. Look at once, not at the next heartbeat."""
        self._check_layout.set()
        self._nudge.set()

    # -- the sweeping thread

    @tracing.quiet()
    def _run(self) -> None:
        self._due["delta"] = time.monotonic() + DELTA_SECONDS
        while not self._stop.wait(max(0.0, self._backoff.until - time.monotonic())):
            self._nudge.wait(max(0.0, min(self._due.values()) - time.monotonic()))
            self._nudge.clear()
            if self._stop.is_set() or not self.round():
                break
        connections.close_all()

    def round(self) -> bool:
        """Do what is due: rebuild, sweep, say that this worker lives. Never raises; False where it must not go on."""
        try:
            self._round()
            self._backoff.worked()
        except DamagedKeys as error:
            self._repair(error)
            self._backoff.failed(time.monotonic())
        except (ForeignLayout, OutdatedRelease, PendingMigrations, UnfitServer) as error:
            self.fail(error)
            return False
        except Exception as error:
            self._due["beat"] = 0.0  # what failed may have been the look or the full sweep
            first = self._backoff.failed(time.monotonic())
            if not isinstance(error, BrokerError | DatabaseError):
                logger.exception("The mirror could not be swept")
                return True
            forget_frames(error)
            connections.close_all()
            if first:
                logger.warning("The mirror could not be swept: %s", str(error).strip())
        return True

    def _round(self) -> None:
        if self._check_layout.is_set():
            sync.check_layout(self.broker)
            self._check_layout.clear()
            self._due["beat"] = 0.0
            self._examined = self._examined or None  # servers that do not say who they are may be others
        if self._rebuild.is_set() or time.monotonic() >= self._due["build"]:
            self._rebuild.clear()
            self._build()
            self._due["beat"] = 0.0  # the list of workers and the note of the last sweep are gone too
            self._wake()
        look = time.monotonic() >= self._due["beat"]
        self._small_chores()
        if look:
            run_ids = self.broker.run_ids()
            if run_ids != self._examined:
                self._examined = probe.examine(self.broker, self._said)
            if self.holds:
                self._long_chores(run_ids)

    def _long_chores(self, run_ids: str) -> None:
        """Sweep and prune, where it is time."""
        report = sync.sweep_if_due(
            self.broker,
            every_seconds=FULL_SECONDS,
            go_on=self._between_pages,
            now_ms=self._beat_ms,
            run_ids=run_ids,
        )
        for line in report.lines[:20] if report else ():
            logger.info("Mirror mended: %s", line)
        self._prune()

    def _build(self) -> None:
        """Rebuild what was flushed; come again soon where this failed, or another worker is at it."""
        self._due["build"] = time.monotonic() + RENEW_SECONDS
        sync.check_layout(self.broker)
        self.rebuilds += sync.rebuild(self.broker, self.broker.shards(), go_on=self._while_building)
        if not sync.unbuilt(self.broker):
            self._due["build"] = math.inf

    def _while_building(self) -> bool:
        """Have the lease, whichever worker had it, and do the small chores; say whether the rebuild goes on."""
        self.broker.seize_upkeep()
        held = self.holds
        self._note_lease(True, RENEW_SECONDS)
        if held:
            self._small_chores()
        return not self._stop.is_set()

    # -- the lease: see Note [One lease]

    def _hold(self) -> None:
        """Renew the lease, or take it if it is free: then what a dead holder has left comes first."""
        if self.holds:
            self._keep()
            return
        seconds = self.broker.take_upkeep()
        self._note_lease(not seconds, seconds or RENEW_SECONDS)
        if not seconds:
            self._build()
            self._due["beat"] = 0.0

    def _keep(self) -> bool:
        """Renew the lease; say whether this worker still holds it."""
        holds = self.broker.keep_upkeep()
        self._note_lease(holds, RENEW_SECONDS if holds else 0.0)
        return holds

    def _let_go(self) -> None:
        if self.holds:
            self._note_lease(False, RENEW_SECONDS)
            self.broker.end_upkeep()

    def _note_lease(self, holds: bool, seconds: float) -> None:
        if holds != self.holds:
            self.holds = holds
            self._due |= dict.fromkeys(("look", "minutes"), 0.0 if holds else math.inf)
        self._due["lease"] = time.monotonic() + seconds

    # -- the chores

    def _beside(self, told: str, chore: Callable[[], Any]) -> Any:
        """Do what holds up nothing else: what could not be done now is done later."""
        try:
            return chore()
        except DamagedKeys:
            raise
        except Exception as error:
            foreseen = isinstance(error, BrokerError | Error | ImproperlyConfigured)
            logger.warning("%s: %s", told, redact_text(str(error).strip()), exc_info=not foreseen)
            forget_frames(error)
            connections.close_all()
            return None

    def _count_up(self) -> None:
        """Move what was counted, and look for overload."""
        self._due["minutes"] = time.monotonic() + MINUTE_SECONDS
        now_ms = self.broker.now_ms()
        self._beside("What was counted could not be moved", lambda: minutes.roll_up(self.broker, now_ms))
        load = minutes.read_load(self.broker)
        if load.overloaded:
            logger.warning(minutes.OVERLOAD, load.told)

    def _prune(self, seconds: float = pruning.AT_ONCE_SECONDS) -> None:
        def prune() -> pruning.LastPass | None:
            return pruning.prune_if_due(self.broker, go_on=self._between_pages, seconds=seconds)

        done = self._beside("The history could not be pruned", prune)
        if done is not None and not done.finished:  # there is more: after the other chores, at once
            self._due["beat"] = 0.0

    def _look(self) -> None:
        wanted = conf.get_config().alerts
        if wanted is None:
            self._due["look"] = math.inf
            return
        seen = self._beside("What is wrong could not be looked for", alerts.look_now)
        self._due["look"] = time.monotonic() + (DELTA_SECONDS if seen is None else wanted.every)

    def _small_chores(self) -> None:
        """Say that this worker lives, mirror what the fast path missed and so on, where it is time."""
        now = time.monotonic()
        if now >= self._due["beat"]:
            sync.check_release()
            self._beat_ms = self.broker.now_ms()
            self.broker.heartbeat(self._beat_ms, self._details())  # a flush takes the details away too
            self._due["beat"] = now + min(HEARTBEAT_SECONDS, FULL_SECONDS)
        if now >= self._due["delta"]:
            more = sync.delta_sweep(self.broker, rows=self.holds) >= sync.PAGE
            more = (self.holds and ledger.prune_expired(sync.PAGE) >= sync.PAGE) or more
            wait = 0.0 if more else DELTA_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the workers
            self._due["delta"] = now + wait
        if now >= self._due["lease"]:
            self._hold()
        if now >= self._due["look"]:
            self._look()
        if now >= self._due["minutes"]:
            self._count_up()

    def _between_pages(self, checked: int = 0) -> bool:
        """Do the small chores; say whether a long one goes on: as long as this worker holds the lease.

        It ends where this worker stops or a shard was flushed.
        """
        if self._stop.is_set() or self._rebuild.is_set():
            return False
        self._small_chores()
        return self.holds and self._keep()

    def _repair(self, error: DamagedKeys) -> None:
        logger.error("%s", error)
        if repair(self.broker, self.shards):
            self.rebuild_soon()

    # -- the listening thread

    @tracing.quiet()
    def _listen(self) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                missed: Iterable[Shard] = self.shards  # whose hints were sent before this subscription
                for hint in self.broker.hints(timeout_seconds=HINT_TIMEOUT_SECONDS):
                    backoff.worked()
                    if self._stop.is_set():
                        return
                    for known in [(shard, 0) for shard in missed] if hint is None else [hint]:
                        self._hinted(known)
                    missed = ()
            except Exception as error:
                backoff.failed(time.monotonic())
                logger.debug("No hints: %s", error)
            self._stop.wait(max(0.0, backoff.until - time.monotonic()))
