"""Where jobs stand, and what is told of them: values, and one interface to Redis and to the database. Reads nothing.

Needs no model, so that `TASKS` can be read before Django's apps are loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from ..broker import NewJob, Shard
from ..compat import AnyResult, task_enqueued
from ..exceptions import ForgedJob, UnreadableJob
from ..jobs import Call, State, parse_id, result_id
from ..side_channels import send

if TYPE_CHECKING:
    from ..models import Job

#: A job that is being enqueued: its result, still to come, and (queue, job).
Enqueued = tuple[AnyResult, tuple[str, NewJob]]


class JobState(StrEnum):
    """Where a job is. `WAITING` for a time, `READY` for its turn, `ENDED` with a result."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DEAD = "dead"
    ENDED = "ended"


#: The states that can be listed.
LISTED = (JobState.WAITING, JobState.READY, JobState.RUNNING, JobState.DEAD, JobState.ENDED)


class Flaw(StrEnum):
    """What is wrong with a job's text: not signed for its queue with our key, or not readable although it is."""

    FORGED = "forged"
    UNREADABLE = "unreadable"


class Outcome(StrEnum):
    """What became of an order. Only after `DONE` something is another way than before."""

    DONE = "done"
    #: A worker holds it: it runs, or is about to.
    HELD = "held"
    #: It has ended, was deleted, or never was.
    GONE = "gone"
    #: It is dead, but would have to wait.
    DEAD = "dead"
    #: It waits or runs, but would have to be dead.
    NOT_DEAD = "not_dead"
    #: No worker has it, so that nothing is to be stopped.
    WAITING = "waiting"
    #: Its turn comes without that.
    READY = "ready"
    #: It cannot be revived while another job that waits has its unique key.
    KEY_TAKEN = "key_taken"
    #: It cannot be revived without being read.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job as it was seen. All instants are ms since the epoch, None where they are not known.

    `at_ms`: until when it waits, since when it is ready (about: by its turn), since when a worker has it, when it died.
    `call` and `record` are None where there is a `flaw`; `line` is that of the call. `result_id` is None where its name
    is none of ours. `row`: all of this was read in it, and Redis need not know of it.
    """

    shard: Shard
    member: str
    state: JobState
    at_ms: int | None
    size: int
    worker: str = ""
    lease_until_ms: int | None = None
    flaw: Flaw | None = None
    line: str = ""
    call: Call | None = None
    record: State | None = None
    row: "Job | None" = None

    @property
    def result_id(self) -> str | None:
        """The id of its result, by which it can be found and changed."""
        found = result_id(self.shard.queue, self.member)
        return found if parse_id(found) == (self.shard.queue, self.member) else None

    def read(self) -> tuple[Call, State]:
        """Return its call and its state.

        Raises:
            UnreadableJob: It has a `flaw`.
        """
        if self.call is None or self.record is None:
            raise UnreadableJob(f"The text of the job {self.member!r} is {self.flaw}.")
        return self.call, self.record

    @property
    def alias(self) -> str:
        """The alias of its backend, '' where that cannot be read."""
        return self.row.backend if self.row is not None else self.call.backend if self.call is not None else ""

    @property
    def in_database(self) -> bool:
        """Whether its row was read."""
        return self.row is not None


class Store(Protocol):
    """Where jobs stand. Whoever gives an order brings the job as this store found it.

    All but `enqueue` raise `BrokerError` where Redis has to say something and does not, and `UnreadableJob` where the
    text of the job counts and cannot be read.
    """

    def enqueue(self, items: Sequence[Enqueued], sender: type) -> None:
        """Take jobs, and tell of them as this sender. A result whose job another one stands for becomes that one's."""

    def find(self, wanted: str) -> SeenJob | None:
        """Return the job of a result's id, None where this store knows none."""

    def for_result(self, seen: SeenJob) -> SeenJob:
        """Return it with what only a result tells: whether it runs, and as its call's `run_after` when it may start."""

    def cancel(self, seen: SeenJob, keep_ms: int) -> Outcome:
        """Write the outcome of a job that waits, for so long: failed, with the error `JobCancelled`."""

    def move(self, seen: SeenJob, at_ms: int) -> Outcome:
        """Let a job that waits start at another time."""

    def revive(self, seen: SeenJob) -> Outcome:
        """Let a dead job wait again, as it was enqueued but for its history."""

    def delete(self, seen: SeenJob) -> Outcome:
        """Forget a dead job, and with it its result."""


def with_text(seen: SeenJob, read: Callable[[], tuple[str, Call, State]]) -> SeenJob:
    """Return a job with what its text says: the line of its call, the call, and the state."""
    try:
        line, call, record = read()
    except ForgedJob:
        return replace(seen, flaw=Flaw.FORGED)
    except UnreadableJob:
        return replace(seen, flaw=Flaw.UNREADABLE)
    return replace(seen, line=line, call=call, record=record)


def without_standing(items: Sequence[Enqueued], standing: Mapping[str, str]) -> list[Enqueued]:
    """Return the items but for those whose jobs others stand for, by member: their results become those others'."""
    fresh = []
    for result, (queue, job) in items:
        other = standing.get(job.member) or job.member
        if other == job.member:
            fresh.append((result, (queue, job)))
        else:
            object.__setattr__(result, "id", result_id(queue, other))
    return fresh


def tell_enqueued(items: Sequence[Enqueued], sender: type) -> None:
    """Send Django's signal for each. Never raises: the jobs are there."""
    for result, _ in items:
        send(task_enqueued, "task_enqueued", sender=sender, task_result=result)
