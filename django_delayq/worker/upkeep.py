"""A worker's chores beside its runs: check the prefix, rebuild after a flush, sweep, send heartbeats, receive hints.

Note [One upkeep worker]
One worker at a time does the work that several would only repeat: full sweeps, rebuilds, pruning, sums of minutes,
alert checks. Without the lease it stops after the current page. A worker that finds a shard flushed seizes the lease
and rebuilds (`sync/rebuild.py`, Note [One worker rebuilds]). The lease only saves work; a chore done twice is harmless.
Delta sweeps cannot wait for the lease of a dead worker, so each worker does its own.
"""

import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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

#: Mean time between two delta sweeps of a worker.
DELTA_SECONDS = 2.0
#: Seconds between heartbeats, and between the lease holder's checks whether a full sweep or pruning is due.
HEARTBEAT_SECONDS = 30.0
#: Seconds between renewals of the lease, and between roll-ups of the counters, both by its holder.
RENEW_SECONDS, MINUTE_SECONDS = 7.0, 60.0
#: One wait for hints, after which the thread checks whether it must end.
HINT_TIMEOUT_SECONDS = 1.0
#: Seconds between two checks of the conditions that a worker waits for at its start.
WAIT_SECONDS = 1.0
#: Maximum seconds of pruning before a worker in burst mode begins.
BURST_PRUNE_SECONDS = 2.0


class Upkeep:
    """Runs two threads, so that a long rebuild delays no claim. No error ends them, except those passed to `fail`."""

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
        self._due |= dict.fromkeys(("build", "look", "minutes"), math.inf)  # the last two: for the lease holder
        #: Whether this worker holds the upkeep lease, as far as it knows. See Note [One upkeep worker].
        self.holds = False
        self._started = round(time.time())
        self._logged: set[str] = set()
        #: Number of rebuilds of a flushed index that this worker has finished.
        self.rebuilds = 0
        self._examined: str | None = None  # run ids of the servers that passed the checks
        self._backoff = Backoff()

    def begin(self, *, burst: bool, stopping: Callable[[], bool]) -> None:
        """Wait for both servers and `migrate`, check the prefix, rebuild if needed, and start the threads.

        Raises ForeignLayout, OutdatedRelease, UnfitServer and BrokerError; in burst mode it raises instead of waiting.
        """
        while not stopping():
            try:
                self._prepare(burst)
                break
            except (DamagedKeys, OtherLayout, PendingMigrations, BrokerUnavailable, DatabaseError) as error:
                self._leave()
                if isinstance(error, DamagedKeys):
                    self._repair(error)
                elif burst:
                    raise
                self._log_wait(error)
                connections.close_all()
                time.sleep(WAIT_SECONDS)
        if not burst and not stopping():
            for target in (self._run, self._listen):
                thread = threading.Thread(target=target, name=f"delayq-{target.__name__}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _log_wait(self, error: Exception) -> None:
        text = str(error)
        if isinstance(error, BrokerUnavailable | DatabaseError):
            where = "CACHES" if isinstance(error, BrokerUnavailable) else "DATABASES"
            text = f"{text.strip(' .')}. Waiting for it. Is the address in {where} right?"
        if text not in self._logged:
            self._logged.add(text)
            logger.error("%s", text)

    def _prepare(self, burst: bool) -> None:
        run_ids = self.broker.read_run_ids()
        probe.examine(self.broker, self._logged)
        self._examined = run_ids
        ledger.check_tables()
        sync.take_layout(self.broker)
        self._build()
        sync.sweep_delta(self.broker)
        if burst:
            self._take_lease()
            if self.holds:
                self._roll_up_minutes()
                sync.sweep_if_due(self.broker, go_on=lambda checked: self._keep_lease())
                self._prune(seconds=BURST_PRUNE_SECONDS)
                self._check_alerts()
                self._release_lease()
        self.broker.write_heartbeat(self.broker.read_now_ms(), self._build_details())
        sync.check_layout(self.broker)  # again: see `sync/switch.py`, Note [Report, then check]

    def _build_details(self) -> str:
        queues = sorted({shard.queue for shard in self.shards})
        own = sync.get_own_layout(self.broker)
        details = {"queues": queues, "started": self._started, "layout": own.version, "shards": own.shards}
        return json.dumps({**details, **self._describe()})

    def end(self) -> None:
        self._stop.set()
        self._nudge.set()
        for thread in self._threads:
            thread.join(timeout=2)

    def sign_off(self) -> None:
        """Stop the threads, remove this worker from the list, and release its lease, if Redis answers."""
        self._stop.set()
        self._leave()

    def _leave(self) -> None:
        try:
            self.broker.remove_heartbeat()
            self._release_lease()
        except BrokerError as error:
            logger.debug("No farewell: %s", error)

    def rebuild_soon(self) -> None:
        """Rebuild: a shard has no epoch, so Redis was flushed."""
        self._rebuild.set()
        self._nudge.set()

    def check_soon(self) -> None:
        """Check the server now: Redis was unreachable and may have been replaced by one with older data."""
        self._check_layout.set()
        self._nudge.set()

    # -- the sweeping thread

    @tracing.quiet()
    def _run(self) -> None:
        self._due["delta"] = time.monotonic() + DELTA_SECONDS
        while not self._stop.wait(max(0.0, self._backoff.until - time.monotonic())):
            self._nudge.wait(max(0.0, min(self._due.values()) - time.monotonic()))
            self._nudge.clear()
            if self._stop.is_set() or not self.run_round():
                break
        connections.close_all()

    def run_round(self) -> bool:
        """Rebuild, sweep and send a heartbeat, as far as due. Never raises; returns False if the thread must end."""
        try:
            self._run_round()
            self._backoff.note_success()
        except DamagedKeys as error:
            self._repair(error)
            self._backoff.note_failure(time.monotonic())
        except (ForeignLayout, OutdatedRelease, PendingMigrations, UnfitServer) as error:
            self.fail(error)
            return False
        except Exception as error:
            self._due["beat"] = 0.0  # the alert check or the full sweep may have failed
            first = self._backoff.note_failure(time.monotonic())
            if not isinstance(error, BrokerError | DatabaseError):
                logger.exception("Redis could not be synced")
                return True
            forget_frames(error)
            connections.close_all()
            if first:
                logger.warning("Redis could not be synced: %s", str(error).strip())
        return True

    def _run_round(self) -> None:
        if self._check_layout.is_set():
            sync.check_layout(self.broker)
            self._check_layout.clear()
            self._due["beat"] = 0.0
            self._examined = self._examined or None  # servers that report no run id may be new ones
        if self._rebuild.is_set() or time.monotonic() >= self._due["build"]:
            self._rebuild.clear()
            self._build()
            self._due["beat"] = 0.0  # the flush also removed the list of workers and the time of the last sweep
            self._wake()
        look = time.monotonic() >= self._due["beat"]
        self._do_small_chores()
        if look:
            run_ids = self.broker.read_run_ids()
            if run_ids != self._examined:
                probe.examine(self.broker, self._logged)
                self._examined = run_ids
            if self.holds:
                self._do_long_chores()

    def _do_long_chores(self) -> None:
        report = sync.sweep_if_due(self.broker, go_on=self._continue_sweep)
        for line in report.lines[:20] if report else ():
            logger.info("Full sweep: %s", line)
        self._prune()

    def _build(self) -> None:
        """Rebuild flushed shards; try again soon if this failed, or if another worker rebuilds them."""
        self._due["build"] = time.monotonic() + RENEW_SECONDS
        sync.check_layout(self.broker)
        self.rebuilds += sync.rebuild(self.broker, self.broker.list_shards(), go_on=self._continue_build)
        if not sync.find_unbuilt(self.broker):
            self._due["build"] = math.inf

    def _continue_build(self) -> bool:
        """Seize the lease from any holder and do the small chores; return whether the rebuild continues."""
        self.broker.seize_upkeep()
        held = self.holds
        self._note_lease(True, RENEW_SECONDS)
        if held:
            self._do_small_chores()
        return not self._stop.is_set()

    def _take_lease(self) -> None:
        if self.holds:
            self._keep_lease()
            return
        seconds = self.broker.take_upkeep()
        self._note_lease(not seconds, seconds or RENEW_SECONDS)
        if not seconds:
            self._build()
            self._due["beat"] = 0.0

    def _keep_lease(self) -> bool:
        holds = self.broker.keep_upkeep()
        self._note_lease(holds, RENEW_SECONDS if holds else 0.0)
        return holds

    def _release_lease(self) -> None:
        if self.holds:
            self._note_lease(False, RENEW_SECONDS)
            self.broker.end_upkeep()

    def _note_lease(self, holds: bool, seconds: float) -> None:
        if holds != self.holds:
            self.holds = holds
            self._due |= dict.fromkeys(("look", "minutes"), 0.0 if holds else math.inf)
        self._due["lease"] = time.monotonic() + seconds

    def _do_safely(self, failure: str, chore: Callable[[], Any]) -> Any:
        try:
            return chore()
        except DamagedKeys:
            raise
        except Exception as error:
            foreseen = isinstance(error, BrokerError | Error | ImproperlyConfigured)
            logger.warning("%s: %s", failure, redact_text(str(error).strip()), exc_info=not foreseen)
            forget_frames(error)
            connections.close_all()
            return None

    def _roll_up_minutes(self) -> None:
        self._due["minutes"] = time.monotonic() + MINUTE_SECONDS
        now_ms = self.broker.read_now_ms()
        self._do_safely("Counts could not be moved to the database", lambda: minutes.roll_up(self.broker, now_ms))
        load = minutes.read_load(self.broker)
        if load.overloaded:
            logger.warning(minutes.OVERLOAD, load.values)

    def _prune(self, seconds: float = pruning.AT_ONCE_SECONDS) -> None:
        prune = partial(pruning.prune_if_due, self.broker, go_on=self._continue_sweep, seconds=seconds)
        done = self._do_safely("The history could not be pruned", prune)
        if done is not None and not done.finished:
            self._due["beat"] = 0.0

    def _check_alerts(self) -> None:
        wanted = conf.get_config().alerts
        if wanted is None:
            self._due["look"] = math.inf
            return
        report = self._do_safely("Alerts could not be checked", alerts.look_now)
        self._due["look"] = time.monotonic() + (DELTA_SECONDS if report is None else wanted.every)

    def _do_small_chores(self) -> None:
        now = time.monotonic()
        if now >= self._due["beat"]:
            sync.check_release()
            # With the details, which a flush removes.
            self.broker.write_heartbeat(self.broker.read_now_ms(), self._build_details())
            self._due["beat"] = now + HEARTBEAT_SECONDS
        if now >= self._due["delta"]:
            more = sync.sweep_delta(self.broker, rows=self.holds) >= sync.PAGE
            more = (self.holds and ledger.prune_expired(sync.PAGE) >= sync.PAGE) or more
            wait = 0.0 if more else DELTA_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the workers
            self._due["delta"] = now + wait
        if now >= self._due["lease"]:
            self._take_lease()
        if now >= self._due["look"]:
            self._check_alerts()
        if now >= self._due["minutes"]:
            self._roll_up_minutes()

    def _continue_sweep(self, checked: int = 0) -> bool:
        """Do the small chores; return False if this worker stops or loses the lease, or if a shard was flushed."""
        if self._stop.is_set() or self._rebuild.is_set():
            return False
        self._do_small_chores()
        return self.holds and self._keep_lease()

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
                missed: Iterable[Shard] = self.shards  # their hints may have been sent before this subscription
                for hint in self.broker.receive_hints(timeout_seconds=HINT_TIMEOUT_SECONDS):
                    backoff.note_success()
                    if self._stop.is_set():
                        return
                    for known in [(shard, 0) for shard in missed] if hint is None else [hint]:
                        self._hinted(known)
                    missed = ()
            except Exception as error:
                backoff.note_failure(time.monotonic())
                logger.debug("No hints: %s", error)
            self._stop.wait(max(0.0, backoff.until - time.monotonic()))
