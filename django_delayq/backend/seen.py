"""A job as it was seen, and what the values of Redis say of one. Reads nothing."""

from dataclasses import dataclass, replace
from enum import StrEnum

from ..broker import JobView, Place, claimed_ms
from ..broker.job_pages import PATIENCE_MS
from ..exceptions import ForgedJob, UnreadableJob
from ..jobs import Call, State, decode, parse_id, result_id


class JobState(StrEnum):
    """Where a job is. `WAITING` for a time, `READY` for its turn, `ENDED` with a result."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DEAD = "dead"
    ENDED = "ended"


#: The states that can be listed.
LISTED = (JobState.WAITING, JobState.READY, JobState.RUNNING, JobState.DEAD)


class Flaw(StrEnum):
    """What is wrong with a job's text: not signed for its queue with our key, or not readable although it is."""

    FORGED = "forged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job as it was seen. All instants are ms since the epoch, None where they are not known.

    `at_ms`: until when it waits, since when it is ready (about: by its turn), since when a worker has it, when it died.
    `call` and `record` are None where there is a `flaw`. `result_id` is None where its name is none of ours.
    `in_database`: all of this was read in its row, and Redis need not know of it.
    """

    place: Place
    member: str
    state: JobState
    at_ms: int | None
    size: int
    worker: str = ""
    lease_until_ms: int | None = None
    flaw: Flaw | None = None
    call: Call | None = None
    record: State | None = None
    in_database: bool = False

    @property
    def result_id(self) -> str | None:
        """The id of its result, by which it can be found and changed."""
        found = result_id(self.place.queue, self.member)
        return found if parse_id(found) == (self.place.queue, self.member) else None


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of jobs. `after` is what the next one is asked for with, '' where there is none.

    `capped`: there are more, but they cannot be paged to.
    """

    jobs: list[SeenJob]
    after: str = ""
    capped: bool = False


def seen_view(place: Place, member: str, view: JobView, turn_us: float | None = None) -> SeenJob | None:
    """Return what these values of Redis say of a job; None where it is gone."""
    text = view.payload or view.result
    if not text and view.waits_until_ms is None and view.died_ms is None and turn_us is None:
        return None
    held = " " in view.holder
    worker = view.holder.partition(" ")[2]
    if not view.payload and view.result:
        seen = SeenJob(place, member, JobState.ENDED, None, len(text))
    elif view.died_ms is not None:
        seen = SeenJob(place, member, JobState.DEAD, view.died_ms, len(text))
    elif held:
        claimed = claimed_ms(view.holder)
        seen = SeenJob(place, member, JobState.RUNNING, claimed, len(text), worker, view.waits_until_ms)
    elif view.waits_until_ms is None:
        seen = SeenJob(place, member, JobState.READY, None, len(text))
    else:
        seen = SeenJob(place, member, JobState.WAITING, view.waits_until_ms, len(text))
    seen = _read(seen, text)
    if seen.state == JobState.ENDED and seen.flaw:
        return None  # as for whoever asks the backend: there is no such result
    if seen.state == JobState.READY and turn_us is not None:
        priority = 0 if seen.call is None else seen.call.priority
        seen = replace(seen, at_ms=max(0, int(min(turn_us, 2.0**62)) // 1000 + priority * PATIENCE_MS))
    elif seen.state == JobState.ENDED and seen.record is not None:
        seen = replace(seen, at_ms=seen.record.finished)
    return seen


def _read(seen: SeenJob, text: str) -> SeenJob:
    try:
        _, call, record = decode(seen.place.queue, seen.member, text)
    except ForgedJob:
        return replace(seen, flaw=Flaw.FORGED)
    except UnreadableJob:
        return replace(seen, flaw=Flaw.UNREADABLE)
    return replace(seen, call=call, record=record)
