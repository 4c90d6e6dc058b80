"""An entry under this worker's lease: claimed, judged, executed, recorded, settled. Writes nothing."""

import logging
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import Error

from ..calls import Call, side_channels, tracing
from ..calls.capture import CapturedOutput
from ..calls.compat import AnyTask
from ..exceptions import BrokerError
from ..index import Entry, Settlement, Shard
from ..index.keys import group_by
from ..ledger import Outcome, chain, keep_former
from ..ledger.rows import RunRow, ScheduleRow
from ..models import Status
from ..recurrence import Skip, from_ms, to_ms
from ..signals import lease_lost

logger = logging.getLogger("django_delayq.worker")

#: Delay in ms before an entry comes due again after a failure of the database, or when its row is locked.
AGAIN_MS = 1_000
#: Maximum time between two renewals, in seconds. A score lost under a lease comes due after 60 s (`upsert.lua`).
RENEWED_WITHIN = 40.0
#: Maximum delay before a retry.
MAX_BACKOFF = timedelta(hours=1)


class FormattedError(NamedTuple):
    """A formatted error without the secrets of the call; `error` is the exception to log, or a substitute."""

    path: str
    title: str
    text: str
    error: BaseException


@dataclass(slots=True, eq=False)
class Lease:
    """A member of a schedule's chain, or a row, under this worker's lease, until `deadline` in monotonic seconds.

    `holder` is its value in Redis: fence, space, worker. `point` is its due point in Redis, or the epoch without one.
    """

    shard: Shard
    member: str
    holder: str
    deadline: float
    entry: Entry
    fence: str
    worker: str
    claimed_at: datetime
    point: datetime
    #: False for a run outside a schedule's chain.
    in_chain: bool = True
    #: Filled in step by step. Set when the entry is judged, if it will be executed or recorded.
    outcome: Outcome = None  # type: ignore[assignment]
    #: Outcomes recorded with this one: points left by an edit (rule R8), or skipped points (rule R9).
    beside: list[Outcome] = field(default_factory=list)
    #: The generation of the definition that was used; Redis may have an older or a newer one.
    generation: int = 0
    #: The values of the row before this worker marked it as running; None if it wrote nothing.
    before: dict[str, Any] | None = None
    #: Delay in ms until the next attempt, if another one is due.
    retry_after_ms: int | None = None
    settlement: Settlement | None = None

    task: AnyTask | None = None
    #: Timeout of the task in seconds; None for no timeout.
    limit: float | None = None
    #: Number of executions that began but did not end, before this one.
    take_overs: int = 0
    executed: bool = False
    seconds: float = 0.0
    output: CapturedOutput | None = None
    #: True if the task did not end after its hard timeout, so that its thread is lost.
    hung: bool = False
    #: True once the lease is lost or the task was given up.
    lost: bool = False
    #: The user who stopped the task while it ran, '' if not known; None if it was not stopped.
    stopped_by: str | None = None
    interrupt: Callable[[], object] | None = None
    failure: FormattedError | None = None
    span: Any = None

    #: Monotonic second at which its row was first found locked, 0 for never; whether the log has reported it.
    locked_at: float = 0.0
    reported: bool = False
    #: True if this worker's call wrote the outcome, False if the outcome was already stored.
    taken: bool = False
    #: Rows of its sort taken before its first refusal; infinite if the error proves no fault, None if not refused.
    refused: float | None = None
    #: Calls the receivers of the end signal, once the outcome is recorded. Never raises.
    after: Callable[[], None] | None = None
    #: Where the thread of the execution waits for that call; None if it does not wait.
    awaited: Future[Callable[[], None] | None] | None = None
    _concluded: threading.Lock = field(default_factory=threading.Lock)  # never released: see `conclude`

    def conclude(self) -> bool:
        """Return True for the first caller only (thread-safe): that caller reports the outcome of this execution."""
        return self._concluded.acquire(blocking=False)

    def hand_over_receivers(self) -> Callable[[], None] | None:
        """Pass `after` to the thread that waits for it; return it if no thread does."""
        if self.awaited is None or not self.awaited.set_running_or_notify_cancel():
            return self.after
        self.awaited.set_result(self.after)
        return None

    def is_lapsed(self) -> bool:
        """Return True if another worker may have the lease by now; nothing may be started under it."""
        return self.lost or time.monotonic() >= self.deadline

    def is_lost(self) -> bool:
        """Return True if another worker may execute the same entry."""
        return self.lost

    @property
    def lapsed_at(self) -> datetime | None:
        """When the worker whose lease lapsed made its claim; None if no lease lapsed, or the time is not known."""
        return None if self.entry.lapsed_ms is None else from_ms(self.entry.lapsed_ms)

    @property
    def sort(self) -> Hashable:
        """What rows must have in common to be written alike: the same tables, inserted or updated."""
        outcome = self.outcome
        return outcome.run.is_job, outcome.run.status, outcome.seen is None, bool(outcome.output), bool(self.beside)

    @property
    def title(self) -> str:
        if not self.outcome:
            return self.member
        run = self.outcome.run
        return f"job {run.result_id}" if run.is_job else f"{run.schedule_name} due {run.due_at}"

    @property
    def labels(self) -> dict[str, str | int]:
        return self.outcome.run.labels

    def get_backoff_left_ms(self, run: RunRow, call: ScheduleRow | Call) -> int:
        """Return the rest of a retry's delay (ms) if Redis does not know the retry: not settled, or flushed."""
        if run.status != Status.RETRYING or self.entry.attempts >= run.attempt or run.finished_at is None:
            return 0
        if run.is_job and run.due_at > run.finished_at:
            return 0
        waits_ms = compute_backoff_ms(call.backoff, run.attempt)
        return min(waits_ms, waits_ms - to_ms(self.claimed_at) + to_ms(run.finished_at))

    def build_run(self, schedule: ScheduleRow, due_at: datetime, **values: object) -> RunRow:
        """Return an unsaved row of this schedule's chain, claimed by this worker."""
        claim = {"fence": self.fence, "claimed_at": self.claimed_at, "worker": self.worker}
        return RunRow.build_for(schedule, due_at, **claim, **values)

    def build_skipped_run(self, schedule: ScheduleRow, skip: Skip) -> RunRow:
        run = self.build_run(schedule, from_ms(to_ms(skip.first)))
        if skip.points > 1:
            run.points, run.last_due_at = skip.points, from_ms(to_ms(skip.last))
        self.close(run, Status.SKIPPED, skip.reason)
        return run

    def close(self, run: RunRow, status: Status, reason: str) -> None:
        """Fill in an outcome without an execution."""
        keep_former(run, self.lapsed_at)
        run.status, run.reason, run.fence, run.worker = status, reason, self.fence, self.worker
        run.claimed_at = run.claimed_at or self.claimed_at
        run.finished_at = self.claimed_at
        if self.outcome and run is self.outcome.run:
            self.close_job()

    def close_job(self) -> None:
        """Release the unique key of a job that ended and set its expiry. Does nothing for a schedule's run."""
        run, call = self.outcome.run, self.outcome.job
        if call is None or run.finished_at is None:
            return
        settings = call.owner.settings
        kept = settings.result_ttl if run.status == Status.SUCCEEDED else settings.failure_ttl
        run.unique_key, run.expires_at = None, run.finished_at + timedelta(seconds=kept)

    def go_to(self, point: datetime | None, schedule: ScheduleRow | None) -> "Lease":
        """Settle to the next point of this schedule, or to the due time of a job; None removes the member."""
        if point is None:
            return self.drop()
        point_ms = to_ms(point)
        wake_ms = to_ms(chain.find_wake(schedule, point)) if schedule is not None and schedule.jitter else point_ms
        self.settlement = Settlement(self.member, self.holder, "next", wake_ms, self.generation, point_ms)
        return self

    def drop(self) -> "Lease":
        """Mark for removal: there is no next due point."""
        self.settlement = Settlement(self.member, self.holder, "drop", 0, self.generation)
        return self

    def wait(self, what: str, delay_ms: int) -> "Lease":
        """Settle so that the entry comes due again after this delay. See settle.lua."""
        self.settlement = Settlement(self.member, self.holder, what, delay_ms)
        return self


def compute_backoff_ms(base: timedelta, attempt: int) -> int:
    """Return the delay after a failed attempt: it doubles up to an hour, less a random part of up to one fifth."""
    seconds = min(base.total_seconds() * 2 ** min(attempt - 1, 30), MAX_BACKOFF.total_seconds())
    return int(seconds * 1000 * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load, guards nothing


def is_key_kept(run: RunRow) -> bool:
    """Return True if a job holds its unique key until it ends."""
    return (run.options or {}).get("unique_until") == "end"


@dataclass(slots=True)
class Verdicts:
    """A batch, sorted by the next step. Each entry is in at most one list, except that `broken` is settled too."""

    start: list[Lease] = field(default_factory=list)
    #: Another worker may have executed these before (rule R2b): call `begin` before they start.
    suspects: list[Lease] = field(default_factory=list)
    #: The outcome is decided without an execution: record, then settle.
    decided: list[Lease] = field(default_factory=list)
    #: No outcome is left to record: settle.
    settle: list[Lease] = field(default_factory=list)
    #: Hand back, to come due again after this many ms.
    back: dict[Lease, int] = field(default_factory=dict)
    #: This worker does not know the task, or could not judge the entry: hand back for other workers.
    unknown: list[Lease] = field(default_factory=list)
    locked: list[Lease] = field(default_factory=list)
    #: The lease is lost, or is left to end: stop holding the entry.
    gone: list[Lease] = field(default_factory=list)
    stretches: list[Outcome] = field(default_factory=list)
    orphans: list[RunRow] = field(default_factory=list)
    #: The next point cannot be computed: store the reason and remove the member.
    broken: list[Lease] = field(default_factory=list)
    #: Rows to put into Redis again, once their members are removed.
    again: list[RunRow] = field(default_factory=list)
    #: The database's error; `back` then has all entries.
    error: Error | None = None

    def hold_back(self, groups: Iterable[list[Lease]], concerns: Callable[[Lease], bool], delay_ms: int) -> None:
        """Hand back the entries of these lists for which `concerns` is True, whatever was decided before."""
        for group in groups:
            self.back |= dict.fromkeys(filter(concerns, group), delay_ms)
            group[:] = [held for held in group if not concerns(held)]


class LeaseKeeper:
    """Holds the claimed entries, and renews all leases in one thread, whether their entries run or wait.

    Note [Leases end at the deadline]
    Entries past their deadline count as lost, whatever Redis says. A deadline counts from when the request was *sent*,
    so it is never later than the end of the lease. After a long stop of its process, a worker finds all of them passed.
    """

    def __init__(
        self,
        renew: Callable[[Shard, Sequence[Lease]], set[str]],
        *,
        lease_seconds: float,
        batch_size: int,
        call_later: Callable[[Callable[[], None]], None] = lambda call: None,
    ) -> None:
        """`renew` returns the lost members. `call_later` receives calls of receivers, which may block."""
        self._renew, self._call_later = renew, call_later
        self.lease_seconds, self.batch_size = lease_seconds, batch_size
        self._held: dict[Lease, None] = {}  # in the order of the claims
        self._leaving: set[Lease] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delayq-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Leases that are still held run out."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self.lease_seconds)

    def add(self, held: Iterable[Lease]) -> None:
        """Hold these entries and renew their leases."""
        with self._lock:
            self._held.update(dict.fromkeys(held))

    def discard(self, held: Iterable[Lease]) -> None:
        """Stop holding these entries: they are settled, handed back or lost."""
        with self._lock:
            for item in held:
                self._held.pop(item, None)

    @contextmanager
    def letting_go(self, held: Iterable[Lease]) -> Iterator[None]:
        """Discard these entries if the block releases them; in it, a renewal that misses them marks none as lost."""
        leaving, gone = set(held), set[Lease]()
        with self._lock:
            self._leaving |= leaving
        try:
            yield
            gone = leaving
        finally:
            with self._lock:
                self._leaving -= leaving
                for item in gone:
                    self._held.pop(item, None)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, held: Lease) -> bool:
        return held in self._held

    @tracing.quiet()
    def _run(self) -> None:
        while not self._stop.wait(min(self.lease_seconds / 3, RENEWED_WITHIN)):
            self.run_round()

    def run_round(self) -> None:
        """Renew everything held; a lease that cannot be renewed ends at its deadline. Never raises."""
        try:
            self.renew_all()
        except Exception as error:
            trace = not isinstance(error, BrokerError)
            logger.warning("Leases could not be renewed: %s", error, exc_info=trace)
            self._expire()

    def renew_all(self) -> None:
        """Renew everything held, one script per shard and batch; after a BrokerError, deadlines are unchanged."""
        with self._lock:
            by_shard = group_by(self._held, lambda held: held.shard)
        for shard, entries in by_shard.items():
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

    def _mark_lost(self, held: Lease) -> None:
        with self._lock:
            if held in self._leaving:
                return
            mine = held in self._held and not held.lost
        held.lost = True
        if mine:
            logger.warning("Lost the lease of %s in %s; another worker may take it over.", held.member, held.shard)
            named = {"sender": type(self), "member": held.member, "queue": held.shard.queue}
            self._call_later(partial(side_channels.send, lease_lost, "lease_lost", cut=BaseException, **named))
