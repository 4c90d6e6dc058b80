"""An entry under this worker's lease: claimed, judged, executed, recorded, settled. Writes nothing.

`Verdicts` carries the decisions about a batch as values, so that `Trip` never calls the worker back.
`LeaseKeeper` renews the leases of all held entries in a thread of its own.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import Error

from ..calls import Call, tracing
from ..calls.capture import Output
from ..calls.compat import AnyTask
from ..calls.side_channels import send
from ..exceptions import BrokerError
from ..index import Entry, Settlement, Shard
from ..index.keys import grouped
from ..ledger import Outcome, chain, keep_former
from ..ledger.rows import RunRow, ScheduleRow
from ..models import Status
from ..recurrence import Skip, from_ms, to_ms
from ..signals import lease_lost
from .announcing import close_job, labels_of

if TYPE_CHECKING:
    from .calling import Told

logger = logging.getLogger("django_delayq.worker")

#: Delay in ms before an entry comes due again after a failure of the database, or when its row is locked.
AGAIN_MS = 1_000
#: Maximum time between two renewals, in seconds. A score lost under a lease comes due after 60 s (`upsert.lua`).
RENEWED_WITHIN = 40.0
#: Maximum delay before a retry.
MAX_BACKOFF = timedelta(hours=1)


@dataclass(slots=True, eq=False)
class Held:
    """A member of a schedule's chain, or a row, under this worker's lease.

    `lease` is the holder's name in Redis: fence, space, worker. After `deadline` (monotonic seconds) another worker may
    have the lease.
    """

    shard: Shard
    member: str
    lease: str
    deadline: float
    entry: Entry
    fence: str
    worker: str
    claimed_at: datetime
    #: The due point stored in Redis; the epoch if Redis stores none.
    point: datetime
    #: True for a member of a schedule's chain, False for a run outside the chain.
    in_chain: bool = True
    #: The outcome, filled in step by step. Set when the entry is judged, if it will be executed or recorded.
    outcome: Outcome = None  # type: ignore[assignment]
    #: Outcomes recorded with this one: points left by an edit (rule R8), or skipped points (rule R9).
    beside: list[Outcome] = field(default_factory=list)
    #: The generation of the definition that was used; Redis may have an older or a newer one.
    generation: int = 0
    #: The values of the row before this worker marked it as running; None if it wrote nothing.
    before: dict[str, Any] | None = None
    #: Delay in ms until the next attempt, if the last attempt failed and another one is due.
    retry_after_ms: int | None = None
    settlement: Settlement | None = None

    task: AnyTask | None = None
    #: Timeout of the task in seconds; None for no timeout.
    limit: float | None = None
    #: Number of executions that began but did not end, before this one.
    take_overs: int = 0
    executed: bool = False
    seconds: float = 0.0
    output: Output | None = None
    #: True if the task did not end after its hard timeout; its thread is lost to this process.
    hung: bool = False
    #: True once the lease is lost or the task was given up: another worker may execute the same entry.
    lost: bool = False
    #: Monotonic second at which its row was first found locked, 0 for never; whether the log has reported it.
    locked_at: float = 0.0
    told: bool = False
    #: True if this worker's call wrote the outcome, False if the outcome was already stored.
    taken: bool = False
    #: Number of rows of its sort taken before its first refusal; infinite if no row is at fault, None if not refused.
    refused: float | None = None
    #: The user who stopped the task while it ran, '' if not known; None if it was not stopped.
    stopped_by: str | None = None
    interrupt: Callable[[], object] | None = None
    #: The error that ended the last attempt, and the span of that attempt if traces are on.
    failure: "Told | None" = None
    span: Any = None
    #: Calls the receivers of the end signal, once the outcome is recorded. Never raises.
    after: Callable[[], None] | None = None
    _record: threading.Event | None = None
    _concluded: threading.Lock = field(default_factory=threading.Lock)  # never released: see `conclude`
    _decided: threading.Lock = field(default_factory=threading.Lock)

    def conclude(self) -> bool:
        """Return True for the first caller only (thread-safe): that caller reports the outcome of this execution."""
        return self._concluded.acquire(blocking=False)

    def expect_record(self) -> None:
        """Prepare this thread to call `wait_for_record`, if there are receivers to call."""
        if self.after is not None:
            self._record = threading.Event()

    @property
    def is_awaited(self) -> bool:
        return self._record is not None

    def wait_for_record(self, seconds: float) -> bool:
        """Wait for the record. Return True if this thread must call `after`, False if the loop will call it."""
        if self._record is None:
            return False
        return self._record.wait(seconds) or not self._is_first()

    def recorded(self) -> bool:
        """Note that the outcome is recorded; return True if the caller must call `after` because no thread waits."""
        if self.after is None:
            return False
        if self._record is None or not self._is_first():
            return True
        self._record.set()
        return False

    def _is_first(self) -> bool:
        return self._decided.acquire(blocking=False)

    def lapsed(self) -> bool:
        """Return True if another worker may have the lease by now; nothing may be started under it."""
        return self.lost or time.monotonic() >= self.deadline

    def is_lost(self) -> bool:
        """Return True if another worker may execute the same entry. Used by the contexts of tasks."""
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
    def stop_key(self) -> int:
        """The primary key of its row, which identifies a request to stop it; 0 if it has no row."""
        return self.outcome.run.pk if self.outcome else 0

    @property
    def title(self) -> str:
        if not self.outcome:
            return self.member
        run = self.outcome.run
        return f"job {run.result_id}" if run.is_job else f"{run.schedule_name} due {run.due_at}"

    @property
    def labels(self) -> dict[str, str | int]:
        """The fields that identify its execution in log records and traces: task, queue, attempt, run or job."""
        return labels_of(self.outcome.run)

    @property
    def waited(self) -> tuple[datetime | None, float | None]:
        """The due time, and the seconds from then to the start; None if that is not meaningful, as after a retry."""
        run = self.outcome.run
        return run.due_at, None if run.lag is None or run.attempt > 1 else run.lag.total_seconds()

    def carried(self) -> dict[str, str]:
        """Return the trace context in which it was enqueued, empty for none. See `tracing.py`, Note [Parent]."""
        carried = (self.outcome.run.options or {}).get("trace")
        return carried if isinstance(carried, dict) else {}

    def backoff_left_ms(self, run: RunRow, call: ScheduleRow | Call) -> int:
        """Return the rest of a retry's delay (ms) if Redis does not know the retry: not settled, or flushed."""
        if run.status != Status.RETRYING or self.entry.attempts >= run.attempt or run.finished_at is None:
            return 0
        if run.is_job and run.due_at > run.finished_at:
            return 0
        waits_ms = backoff_ms(call.backoff, run.attempt)
        return min(waits_ms, waits_ms - to_ms(self.claimed_at) + to_ms(run.finished_at))

    def new_run(self, schedule: ScheduleRow, due_at: datetime, **values: object) -> RunRow:
        """Return an unsaved row of this schedule's chain, claimed by this worker."""
        return RunRow.of(schedule, due_at, fence=self.fence, claimed_at=self.claimed_at, worker=self.worker, **values)

    def skipped_run(self, schedule: ScheduleRow, skip: Skip) -> RunRow:
        """Return an unsaved row for skipped points."""
        run = self.new_run(schedule, from_ms(to_ms(skip.first)))
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
            close_job(self)

    def go_to(self, point: datetime | None, schedule: ScheduleRow) -> "Held":
        """Settle to the next point of this schedule; None removes the member."""
        if point is None:
            return self.drop()
        point_ms = to_ms(point)
        wake_ms = to_ms(chain.wake_of(schedule, point)) if schedule.jitter else point_ms
        self.settlement = Settlement(self.member, self.lease, "next", wake_ms, self.generation, point_ms)
        return self

    def put_off(self, point: datetime) -> "Held":
        """Settle to this point: the row comes due then."""
        point_ms = to_ms(point)
        self.settlement = Settlement(self.member, self.lease, "next", point_ms, self.generation, point_ms)
        return self

    def drop(self) -> "Held":
        """Mark for removal: there is no next due point."""
        self.settlement = Settlement(self.member, self.lease, "drop", 0, self.generation)
        return self

    def wait(self, what: str, delay_ms: int) -> "Held":
        """Settle so that the entry comes due again after this delay. See settle.lua."""
        self.settlement = Settlement(self.member, self.lease, what, delay_ms)
        return self


def backoff_ms(base: timedelta, attempt: int) -> int:
    """Return the delay after a failed attempt: it doubles up to an hour, less a random part of up to one fifth."""
    seconds = min(base.total_seconds() * 2 ** min(attempt - 1, 30), MAX_BACKOFF.total_seconds())
    return int(seconds * 1000 * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load, guards nothing


def holds_until_end(run: RunRow) -> bool:
    """Return True if a job holds its unique key until it ends."""
    return (run.options or {}).get("unique_until") == "end"


class Due(NamedTuple):
    """When something comes due in a shard, and the current time, both in ms by the server's clock.

    `due_ms` is None for never. `now_ms` is 0 if the current time is not known.
    """

    shard: Shard
    due_ms: int | None
    now_ms: int = 0


class Claimed(NamedTuple):
    """The reply to a claim: see `broker.Claim`."""

    now_ms: int
    head_ms: int | None
    epoch: str | None
    entries: list[Held]


@dataclass(slots=True)
class Verdicts:
    """A batch, sorted by the next step. Each entry is in at most one list, except that `park` is settled too."""

    #: Execute at once: no lease of theirs has lapsed, or `begin` has marked them as running.
    start: list[Held] = field(default_factory=list)
    #: Another worker may have executed these before (rule R2b): call `begin` first.
    suspects: list[Held] = field(default_factory=list)
    #: The outcome is decided without an execution: record, then settle.
    decided: list[Held] = field(default_factory=list)
    #: No outcome is left to record: settle.
    settle: list[Held] = field(default_factory=list)
    #: Hand back, to come due again after this many ms.
    back: list[tuple[Held, int]] = field(default_factory=list)
    #: This worker does not know the task, or could not judge the entry: hand back for other workers.
    unknown: list[Held] = field(default_factory=list)
    locked: list[Held] = field(default_factory=list)
    #: The lease is lost, or is left to end: stop holding the entry.
    gone: list[Held] = field(default_factory=list)
    stretches: list[Outcome] = field(default_factory=list)
    orphans: list[RunRow] = field(default_factory=list)
    #: The next point cannot be computed: store the reason and remove the member.
    park: list[Held] = field(default_factory=list)
    #: Rows to put into Redis again, once their members are removed.
    again: list[RunRow] = field(default_factory=list)
    #: Whether the database was queried, and the error if that failed; `back` then has the entries that need it.
    asked: bool = False
    error: Error | None = None

    def hold_back(self, holds: Callable[[Held], bool], delay_ms: int) -> None:
        """Hand back the entries that must not start now."""
        for group in (self.start, self.suspects):
            self.back += [(held, delay_ms) for held in group if holds(held)]
            group[:] = [held for held in group if not holds(held)]

    def put_back(self, members: Collection[str]) -> None:
        """Hand back these members, whatever was decided before."""
        for group in (self.start, self.suspects, self.decided, self.unknown, self.park):
            self.back += [(held, AGAIN_MS) for held in group if held.member in members]
            group[:] = [held for held in group if held.member not in members]


Renew = Callable[[Shard, Sequence[Held]], set[str]]


class LeaseKeeper:
    """Holds the claimed entries. Entries past their deadline count as lost, whatever Redis says (Note [Self-fence]).

    Note [One thread renews]
    Leases are short, so that a dead worker delays its points only a little, but tasks may be long. So one thread
    renews all leases of this process every third of a lease and at least every 40 s, whether their entries run or
    wait. Busy slots cannot starve it, except by C code that does not release the interpreter: then the leases lapse,
    which Note [Self-fence] detects.

    Note [Self-fence]
    The deadline counts from this process' monotonic clock when the request was *sent*, so it is never later than the
    real end of the lease. A process that was stopped for longer than its lease finds all deadlines passed.
    """

    def __init__(
        self, renew: Renew, *, lease_seconds: float, batch_size: int, wake: Callable[[], None] = lambda: None
    ) -> None:
        """`renew` extends leases of a shard and returns the lost members; `wake` makes the loop check `untold`."""
        self._renew = renew
        self.lease_seconds, self.batch_size, self._wake = lease_seconds, batch_size, wake
        #: Calls of receivers. The renewing thread does not make them: a receiver that blocks would cost all leases.
        self.untold: deque[Callable[[], None]] = deque()
        self._held: dict[Held, None] = {}  # in the order of the claims
        self._leaving: set[Held] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delayq-leases", daemon=True)

    def start(self) -> None:
        """Start the renewing thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Leases that are still held run out."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self.lease_seconds)

    def add(self, held: Iterable[Held]) -> None:
        """Hold these entries and renew their leases."""
        with self._lock:
            self._held.update(dict.fromkeys(held))

    def discard(self, held: Iterable[Held]) -> None:
        """Stop holding these entries: they are settled, handed back or lost."""
        with self._lock:
            for item in held:
                self._held.pop(item, None)

    @contextmanager
    def letting_go(self, held: Iterable[Held]) -> Iterator[None]:
        """Discard these entries if the block, which releases them in Redis, succeeds; if it fails, keep them.

        Redis may have released them before its reply arrives, so a renewal that does not find them is not a loss.
        """
        leaving, gone = set(held), set[Held]()
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

    def __contains__(self, held: Held) -> bool:
        return held in self._held

    @tracing.quiet()
    def _run(self) -> None:
        while not self._stop.wait(min(self.lease_seconds / 3, RENEWED_WITHIN)):
            self.round()

    def round(self) -> None:
        """Renew everything held; a lease that cannot be renewed ends at its deadline. Never raises."""
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
            BrokerError: Some leases were not renewed; their deadlines are unchanged.
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
