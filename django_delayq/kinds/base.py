"""An entry under this worker's lease, and the protocol of what the worker does with entries of a kind.

Note [Kinds]
Loop, claims, slots, leases, isolation and recorder are the same for all that comes due; what differs stands in a
`Kind`. A kind claims, decides, executes, records and settles batches of its own entries, and says by values what is
to become of each (`Verdicts`): it never calls the worker back. One kind more is one object more in `Worker`, and one
name more in `Claimed.also`, by which the claim of the first kind says that the others have something due.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from django.db import Error
from django.db.models import Model

from ..broker import Shard
from ..capture import Output
from ..compat import AnyTask
from ..counters import Counts

if TYPE_CHECKING:
    from .execution import Told


@dataclass(slots=True, eq=False)
class Held:
    """An entry under this worker's lease. `deadline` is monotonic: after it the lease may be somebody else's."""

    kind: "Kind[Any]"
    shard: Shard
    member: str
    #: What Redis calls this lease: fence, space, worker.
    lease: str
    deadline: float
    #: The task, once it is known that it is to be executed.
    task: AnyTask | None = None
    #: For how many seconds that may run; None for ever.
    limit: float | None = None
    #: How often an execution of it was begun that did not end, with the one that would begin now; 0 for a first one.
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
    _unconcluded: list[None] = field(default_factory=lambda: [None])
    _undecided: list[None] = field(default_factory=lambda: [None])

    def conclude(self) -> bool:
        """Say True to the first caller only, whatever the thread: that one reports the outcome of this execution."""
        return _take(self._unconcluded)

    def expects_record(self) -> bool:
        """Say whether receivers are to be called once it is recorded; this thread may `wait_for_record` then."""
        if self.after is not None:
            self._record = threading.Event()
        return self.after is not None

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
        return _take(self._undecided)

    def lapsed(self) -> bool:
        """Say whether the lease may be somebody else's by now, so that nothing must be started on it."""
        return self.lost or time.monotonic() >= self.deadline

    def is_lost(self) -> bool:
        """Say whether somebody else may execute the same: for the contexts of tasks."""
        return self.lost

    @property
    def sort(self) -> Hashable:
        """What outcomes have in common that are written alike: the same tables, inserted or changed."""
        return (self.kind,)

    @property
    def stop_key(self) -> int:
        """The primary key of its row, by which people stop it, 0 where it has none: see `models/cancellation.py`."""
        return 0

    @property
    def title(self) -> str:
        """What people call it."""
        return self.member

    @property
    def labels(self) -> dict[str, str | int]:
        """What names its execution beside the lines of a log, and in a trace: task, queue, attempt, and which it is."""
        return {}

    @property
    def waited(self) -> tuple[datetime | None, float | None]:
        """When it was due, and for how many seconds it has waited since; None where that says nothing."""
        return None, None

    def carried(self) -> tuple[dict[str, str], bool]:
        """Return in which trace it was asked for, and whether it is a part of that trace: `tracing.py`."""
        return {}, False


H = TypeVar("H", bound=Held)

#: After a failure of the database, its entries come back after so long; so does what somebody has locked.
AGAIN_MS = 1_000
#: What is about to move to another shard comes back after so long, unleased meanwhile, so that it can be moved: what is
#: busy all the time would be leased at each look, and never be moved.
MOVING_MS = 1_000


class Due(NamedTuple):
    """When something comes due in a shard, in ms by the server's clock, None for never; and what that clock says now.

    `now_ms` is 0 where that is not known.
    """

    shard: Shard
    due_ms: int | None
    now_ms: int = 0


class Claimed(NamedTuple, Generic[H]):
    """The reply to a claim. `head_ms` is the score of the shard's next member after it, None if the shard is empty.

    `epoch` is None where the shard was flushed and has to be rebuilt. `damaged`: members there lost their scores.
    """

    now_ms: int
    head_ms: int | None
    epoch: str | None
    entries: list[H]
    damaged: bool = False


@dataclass(slots=True)
class Verdicts(Generic[H]):
    """A batch, sorted by what happens next. Each entry is in one list at most."""

    #: Execute at once: nobody can have executed these before, or `begin` has written that they run.
    start: list[H] = field(default_factory=list)
    #: Somebody may have executed these before (rule R2b): `begin` first.
    suspects: list[H] = field(default_factory=list)
    #: Their outcome is filled in without an execution: record, then settle.
    decided: list[H] = field(default_factory=list)
    #: No outcome is to be recorded (any more): settle.
    settle: list[H] = field(default_factory=list)
    #: Hand back after so many ms.
    back: list[tuple[H, int]] = field(default_factory=list)
    #: This code does not know their tasks: hand back for others.
    unknown: list[H] = field(default_factory=list)
    #: Somebody else has locked their rows: try again.
    locked: list[H] = field(default_factory=list)
    #: The lease is gone, or left to its end: let go.
    gone: list[H] = field(default_factory=list)
    #: Redis says that the lease is somebody else's: let go, and tell.
    lost: list[H] = field(default_factory=list)
    #: Whether the database was asked, and why that failed, if it did: what needs it is in `back` then.
    asked: bool = False
    error: Error | None = None

    def hold_back(self, holds: Callable[[H], bool], delay_ms: int) -> None:
        """Hand back the entries that must not start now."""
        for group in (self.start, self.suspects):
            self.back += [(held, delay_ms) for held in group if holds(held)]
            group[:] = [held for held in group if not holds(held)]

    def put_back(self, members: Collection[str]) -> None:
        """Have these be handed back, instead of what was found before."""
        for group in (self.start, self.suspects, self.decided, self.unknown):
            self.back += [(held, AGAIN_MS) for held in group if held.member in members]
            group[:] = [held for held in group if held.member not in members]


def _take(tokens: list[None]) -> bool:
    """Return True to the first caller only, in any thread."""
    try:
        tokens.pop()  # atomic
    except IndexError:
        return False
    return True


class Kind(Protocol[H]):
    """A batch is of this kind, and of one shard where it goes to Redis. Called in the loop's thread unless said."""

    #: As other kinds' claims name it.
    name: str
    #: What became of its entries, until it is brought to Redis.
    counted: Counts
    #: Calls of receivers, to be made once what they tell of is written. None of them raises.
    untold: deque[Callable[[], None]]

    @property
    def tables(self) -> tuple[type[Model], ...]:
        """Whose rows may be locked by others."""

    def claim(self, shard: Shard, limit: int, request: int, deadline: float, most: int | None = None) -> Claimed[H]:
        """Lease what is due. The same `request` again returns what the lost reply had.

        `most`: so many entries of all kinds may be leased in the shard.

        Raises:
            BrokerError: The claim may have been executed.
        """

    def renew(self, shard: Shard, batch: Sequence[H]) -> set[str]:
        """Extend leases; return the members whose lease is not ours any more. Called in the renewing thread.

        Raises:
            BrokerError: Nothing is known.
        """

    def judge(self, batch: Sequence[H]) -> Verdicts[H]:
        """Read what the database says, and decide; write what has to stand there before anything is started."""

    def begin(self, batch: Sequence[H]) -> Verdicts[H]:
        """Write that executions begin which may be repetitions, and count them; what is poison is decided (rule R6).

        Raises:
            DatabaseError: None of them may start.
            BrokerError: None of them may start, and nothing is known of their leases.
        """

    def show(self, batch: Sequence[H]) -> list[H] | None:
        """Write that these run, where no row says so yet. Return those that shall have no row; None if all have one.

        Raises:
            django.db.Error: Nothing was written.
        """

    def execute(self, held: H) -> bool:
        """Call the task and fill in its outcome. Called in a slot's thread. Never raises.

        False where the task ended after its hard timeout: its outcome was reported without it.
        """

    def give_up(self, held: H, where: str) -> None:
        """Fill in the outcome of a task that does not end; `where` is what its thread does. Called after `conclude`."""

    def record(self, batch: Sequence[H]) -> Verdicts[H]:
        """Write outcomes in one transaction: each entry is to be settled, locked or gone then.

        Raises:
            django.db.Error: Nothing was written; the same call may be repeated.
        """

    def give_back(self, batch: Sequence[H], delay_ms: int) -> None:
        """Have these be settled as not started, to come due after so long; take back what was written of their start.

        Raises:
            DatabaseError: They are to be settled all the same.
        """

    def settle(self, shard: Shard, batch: Sequence[H]) -> list[Due]:
        """Give leases back; return where something comes due for that, and when.

        Raises:
            BrokerError: Settling them once more does no harm.
        """
