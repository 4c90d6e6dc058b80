"""An entry under this worker's lease, on its way: claimed, judged, executed, recorded, settled. Writes nothing.

What is to become of a batch is said by values (`Verdicts`): the code of the trip never calls the worker back.
`LeaseKeeper` renews the leases of what is held, in a thread of its own.
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

from .. import chain, tracing
from ..broker import Entry, Settlement, Shard
from ..capture import Output
from ..compat import AnyTask
from ..exceptions import BrokerError
from ..grouping import grouped
from ..jobs import Call
from ..ledger import Outcome, keep_former
from ..models import Status
from ..rows import RunRow, ScheduleRow
from ..side_channels import send
from ..signals import lease_lost
from ..timing import Skip, from_ms, to_ms
from .announcing import close_job, labels_of

if TYPE_CHECKING:
    from .calling import Told

logger = logging.getLogger("django_delayq.worker")

#: After a failure of the database, its entries come back after so long; so does what another transaction has locked.
AGAIN_MS = 1_000
#: Longest time between two renewals, in seconds: a score that was lost under a lease comes due after 60 (`upsert.lua`).
RENEWED_WITHIN = 40.0
#: No retry waits longer.
MAX_BACKOFF = timedelta(hours=1)


@dataclass(slots=True, eq=False)
class Held:
    """A member of a schedule's chain, or a row, under this worker's lease.

    `lease` is what Redis calls it: fence, space, worker. `deadline` is monotonic: after it the lease may be another
    worker's.
    """

    shard: Shard
    member: str
    lease: str
    deadline: float
    entry: Entry
    #: The fence of its claim, and the worker that made it.
    fence: str
    worker: str
    claimed_at: datetime
    #: The point that Redis names; the epoch where it names none.
    point: datetime
    #: True for a member of a schedule's chain, False for a run apart from it.
    in_chain: bool = True
    #: What it has become or will have. There from its judgement on, where it is to be executed or recorded.
    outcome: Outcome = None  # type: ignore[assignment]
    #: To be recorded with its outcome: what an edit left behind it (rule R8), or what is skipped for it (R9).
    beside: list[Outcome] = field(default_factory=list)
    #: The generation of the definition that was used; the mirror's may be newer or older.
    generation: int = 0
    #: What the row was before this worker wrote that it runs; None where it wrote nothing.
    before: dict[str, Any] | None = None
    #: After how long another attempt is due, where the last one failed.
    retry_after_ms: int | None = None
    #: What becomes of it in Redis.
    settlement: Settlement | None = None

    #: The task, once it is known that it is to be executed.
    task: AnyTask | None = None
    #: For how many seconds that may run; None for ever.
    limit: float | None = None
    #: How many executions of it were begun and did not end, before the one that would begin now.
    take_overs: int = 0
    #: True once its task was called, and for how long that went on.
    executed: bool = False
    seconds: float = 0.0
    #: What it has said, where that is kept.
    output: Output | None = None
    #: True where the task goes on although its time is over: its thread is lost to this process.
    hung: bool = False
    #: True once the lease is lost, or the task is given up: somebody else may execute the same.
    lost: bool = False
    #: The monotonic second at which its row was first found locked, 0 for never; whether that was told.
    locked_at: float = 0.0
    told: bool = False
    #: True once this worker's call has written its outcome. False where it stood there already.
    taken: bool = False
    #: The number of rows of its sort taken before its first refusal; infinite where no row is at fault, None before.
    refused: float | None = None
    #: Who has stopped it while it ran, '' where that is not known; None for nobody.
    stopped_by: str | None = None
    #: How an `async def` task is interrupted: by its event loop.
    interrupt: Callable[[], object] | None = None
    #: What ended its last attempt, where that failed; and the span of that attempt, where there are traces.
    failure: "Told | None" = None
    span: Any = None
    #: Calls the receivers of its end, which must not be called before that is recorded. Never raises.
    after: Callable[[], None] | None = None
    _record: threading.Event | None = None
    _concluded: threading.Lock = field(default_factory=threading.Lock)  # never released: see `conclude`
    _decided: threading.Lock = field(default_factory=threading.Lock)

    def conclude(self) -> bool:
        """Say True to the first caller only, whatever the thread: that one reports the outcome of this execution."""
        return self._concluded.acquire(blocking=False)

    def expect_record(self) -> None:
        """Where receivers are to be called once it is recorded, this thread may `wait_for_record`."""
        if self.after is not None:
            self._record = threading.Event()

    @property
    def is_awaited(self) -> bool:
        """Whether a thread waits for its record, or has waited."""
        return self._record is not None

    def wait_for_record(self, seconds: float) -> bool:
        """Wait for the record. True: it came in time, and this thread calls `after`. False: the loop will call it."""
        if self._record is None:
            return False
        return self._record.wait(seconds) or not self._is_first()

    def recorded(self) -> bool:
        """Note that its outcome stands; say whether the caller has to call `after`, since no thread waits for this."""
        if self.after is None:
            return False
        if self._record is None or not self._is_first():
            return True
        self._record.set()
        return False

    def _is_first(self) -> bool:
        """Say True to the first caller only: it decides who calls `after`."""
        return self._decided.acquire(blocking=False)

    def lapsed(self) -> bool:
        """Say whether the lease may be somebody else's by now, so that nothing must be started on it."""
        return self.lost or time.monotonic() >= self.deadline

    def is_lost(self) -> bool:
        """Say whether somebody else may execute the same: for the contexts of tasks."""
        return self.lost

    @property
    def lapsed_at(self) -> datetime | None:
        """When the worker claimed it whose lease ran out before; None where none did, or that is not known."""
        return None if self.entry.lapsed_ms is None else from_ms(self.entry.lapsed_ms)

    @property
    def sort(self) -> Hashable:
        """What outcomes have in common that are written alike: the same tables, inserted or changed."""
        outcome = self.outcome
        return outcome.run.is_job, outcome.run.status, outcome.seen is None, bool(outcome.output), bool(self.beside)

    @property
    def stop_key(self) -> int:
        """The primary key of its row, by which people stop it, 0 where it has none: see `models/cancellation.py`."""
        return self.outcome.run.pk if self.outcome else 0

    @property
    def title(self) -> str:
        """What people call it."""
        if not self.outcome:
            return self.member
        run = self.outcome.run
        return f"job {run.result_id}" if run.is_job else f"{run.schedule_name} due {run.due_at}"

    @property
    def labels(self) -> dict[str, str | int]:
        """What names its execution beside the lines of a log, and in a trace: task, queue, attempt, and which it is."""
        return labels_of(self.outcome.run)

    @property
    def waited(self) -> tuple[datetime | None, float | None]:
        """When it was due, and for how many seconds it has waited since; None where that says nothing."""
        run = self.outcome.run
        return run.due_at, None if run.lag is None or run.attempt > 1 else run.lag.total_seconds()

    def carried(self) -> dict[str, str]:
        """Return in which trace it was asked for, empty for none: see `tracing.py`, Note [Parent]."""
        carried = (self.outcome.run.options or {}).get("trace")
        return carried if isinstance(carried, dict) else {}

    def backoff_left_ms(self, run: RunRow, call: ScheduleRow | Call) -> int:
        """Return for how long a retry has still to wait of which Redis does not know: not settled, or flushed."""
        if run.status != Status.RETRYING or self.entry.attempts >= run.attempt or run.finished_at is None:
            return 0
        if run.is_job and run.due_at > run.finished_at:  # it was moved since
            return 0
        waits_ms = backoff_ms(call.backoff, run.attempt)
        return min(waits_ms, waits_ms - to_ms(self.claimed_at) + to_ms(run.finished_at))

    def new_run(self, schedule: ScheduleRow, due_at: datetime, **values: object) -> RunRow:
        """Return an unsaved row of this schedule's chain, claimed by this worker."""
        return RunRow.of(schedule, due_at, fence=self.fence, claimed_at=self.claimed_at, worker=self.worker, **values)

    def skipped_run(self, schedule: ScheduleRow, skip: Skip) -> RunRow:
        """Return an unsaved row of what is skipped."""
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
        """Have it be settled to the next point of this schedule; None drops it."""
        if point is None:
            return self.drop()
        point_ms = to_ms(point)
        wake_ms = to_ms(chain.wake_of(schedule, point)) if schedule.jitter else point_ms
        self.settlement = Settlement(self.member, self.lease, "next", wake_ms, self.generation, point_ms)
        return self

    def put_off(self, point: datetime) -> "Held":
        """Have it be settled to this point of its own: a row comes due then."""
        point_ms = to_ms(point)
        self.settlement = Settlement(self.member, self.lease, "next", point_ms, self.generation, point_ms)
        return self

    def drop(self) -> "Held":
        """Have it be settled as one that has no next point."""
        self.settlement = Settlement(self.member, self.lease, "drop", 0, self.generation)
        return self

    def wait(self, what: str, delay_ms: int) -> "Held":
        """Have it be settled as one that comes due again after so long: see settle.lua."""
        self.settlement = Settlement(self.member, self.lease, what, delay_ms)
        return self


def backoff_ms(base: timedelta, attempt: int) -> int:
    """Return the delay after a failed attempt: doubling, at most an hour, spread by up to a fifth downwards."""
    seconds = min(base.total_seconds() * 2 ** min(attempt - 1, 30), MAX_BACKOFF.total_seconds())
    return int(seconds * 1000 * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load, guards nothing


def holds_until_end(run: RunRow) -> bool:
    """Say whether a job holds its unique key until it has ended."""
    return (run.options or {}).get("unique_until") == "end"


class Due(NamedTuple):
    """When something comes due in a shard, in ms by the server's clock, None for never; and what that clock says now.

    `now_ms` is 0 where that is not known.
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
    """A batch, sorted by what happens next. Each entry is in one list at most; what is parked is settled too."""

    #: Execute at once: no lease of theirs has run out, or `begin` has written that they run.
    start: list[Held] = field(default_factory=list)
    #: Somebody may have executed these before (rule R2b): `begin` first.
    suspects: list[Held] = field(default_factory=list)
    #: Their outcome is filled in without an execution: record, then settle.
    decided: list[Held] = field(default_factory=list)
    #: No outcome is to be recorded (any more): settle.
    settle: list[Held] = field(default_factory=list)
    #: Hand back after so many ms.
    back: list[tuple[Held, int]] = field(default_factory=list)
    #: This code does not know their tasks, or could not judge them: hand back for others.
    unknown: list[Held] = field(default_factory=list)
    #: Somebody else has locked their rows: try again.
    locked: list[Held] = field(default_factory=list)
    #: The lease is gone, or left to its end: let go.
    gone: list[Held] = field(default_factory=list)
    #: Stretches left by edits, to be recorded before anything else.
    stretches: list[Outcome] = field(default_factory=list)
    #: Open runs of schedules that are gone: close them.
    orphans: list[RunRow] = field(default_factory=list)
    #: The next point cannot be computed: park.
    park: list[Held] = field(default_factory=list)
    #: To be put anew, once their members are dropped.
    again: list[RunRow] = field(default_factory=list)
    #: Whether the database was asked, and why that failed, if it did: what needs it is in `back` then.
    asked: bool = False
    error: Error | None = None

    def hold_back(self, holds: Callable[[Held], bool], delay_ms: int) -> None:
        """Hand back the entries that must not start now."""
        for group in (self.start, self.suspects):
            self.back += [(held, delay_ms) for held in group if holds(held)]
            group[:] = [held for held in group if not holds(held)]

    def put_back(self, members: Collection[str]) -> None:
        """Have these be handed back, instead of what was found before."""
        for group in (self.start, self.suspects, self.decided, self.unknown, self.park):
            self.back += [(held, AGAIN_MS) for held in group if held.member in members]
            group[:] = [held for held in group if held.member not in members]


Renew = Callable[[Shard, Sequence[Held]], set[str]]


class LeaseKeeper:
    """Holds what is claimed. Entries past their deadline count as lost, whatever Redis says (Note [Self-fence]).

    Note [One thread renews]
    Leases are short, so that a dead worker delays its points by little, and tasks may be long. One thread renews, every
    third of a lease and at least every 40 s, all that this process holds: what runs, what waits for a slot or to run
    alone, and what waits to be recorded. A busy slot cannot starve it, except by C code that keeps the interpreter to
    itself; then the leases lapse, which the process notices by the next rule.

    Note [Self-fence]
    The deadline is taken from this process' monotonic clock when the request was *sent*, so it never lies after the
    lease's real end. A process that was stopped for longer than its lease finds every deadline passed when it wakes up.
    """

    def __init__(
        self, renew: Renew, *, lease_seconds: float, batch_size: int, wake: Callable[[], None] = lambda: None
    ) -> None:
        """`renew` extends leases of a shard, and returns the lost members; `wake` has the loop see `untold`."""
        self._renew = renew
        self.lease_seconds, self.batch_size, self._wake = lease_seconds, batch_size, wake
        #: Calls of receivers. The thread that renews does not make them: a receiver that blocks would cost all leases.
        self.untold: deque[Callable[[], None]] = deque()
        self._held: dict[Held, None] = {}  # in the order of the claims
        self._leaving: set[Held] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delayq-leases", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is still held runs out by itself."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self.lease_seconds)

    def add(self, held: Iterable[Held]) -> None:
        """Keep these from now on."""
        with self._lock:
            self._held.update(dict.fromkeys(held))

    def discard(self, held: Iterable[Held]) -> None:
        """Let these go: they are settled, handed back or lost."""
        with self._lock:
            for item in held:
                self._held.pop(item, None)

    @contextmanager
    def letting_go(self, held: Iterable[Held]) -> Iterator[None]:
        """Discard these once Redis, which is asked to inside, has let them go; where that fails they stay.

        Redis may have done so before its reply is here: that a renewal does not find them any more is no loss then.
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
        """Renew everything held; what cannot be renewed ends with its deadline. Never raises."""
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
            BrokerError: Nothing is known of the others; their deadlines stand as they were.
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
