"""The attempts of a job: when each of them began and ended, and those of before it was revived. Reads nothing.

Errors and workers stand in the state as Django's `TaskResult` wants them. Beside them stand the times, one for each
attempt that failed, in their order, and one wherever an execution did not end. See `record.py`, Note [Past].
"""

from .. import history
from ..exceptions import JobCancelled
from ..history import Attempt
from .record import Span, State

_CANCELLED = f"{JobCancelled.__module__}.{JobCancelled.__qualname__}"


def note_failed(state: State, ended: int) -> None:
    """Note the times of the attempt that has just failed. Its error and its worker are noted already."""
    known = sum(not span.lost for span in state.times)
    unknown = [Span(None, None)] * (len(state.workers) - 1 - known)  # tried by an older version
    state.times = [*state.times, *unknown, Span(state.attempted, ended)]


def note_lost(state: State, count: int, worker: str, started: int | None) -> None:
    """Note executions that did not end: so many, of which only the last one's worker may be known, and its claim."""
    if count > 0:
        state.times = [
            *state.times,
            *[Span(None, None, "")] * (count - 1),
            Span(started, None, worker[: history.MOST_LINE]),
        ]


def note_cancelled(state: State, ended: int) -> None:
    """Note that the job was cancelled."""
    state.status, state.finished = "FAILED", ended
    when = "between two attempts" if state.workers else "before it started"
    state.errors.append((_CANCELLED, f"Cancelled {when}."))


def note_running(state: State, worker: str, claimed: int | None) -> None:
    """Note who executes the job, since when."""
    state.started, state.attempted = state.started or claimed, claimed
    state.workers.append(worker)


def attempts_of(state: State) -> list[Attempt]:
    """Return the attempts of a job that have ended, also those of before it was revived, oldest first."""
    found = list(state.earlier)
    failed = 0
    for span in state.times:
        if span.lost:
            found = history.followed_by(found, span.started, None, span.worker or "", history.NOT_ENDED)
        elif failed < len(state.workers):
            found = _add(found, state, failed, span)
            failed += 1
    for index in range(failed, len(state.workers)):
        last = index == len(state.workers) - 1
        found = _add(found, state, index, Span(state.attempted, state.finished) if last else Span(None, None))
    return found


def _add(found: list[Attempt], state: State, index: int, span: Span) -> list[Attempt]:
    path, trace = state.errors[index] if index < len(state.errors) else ("", "")
    if not path or (index == len(state.workers) - 1 and state.left_out):
        return history.followed_by(found, span.started, span.finished, state.workers[index], "")
    title = history.title_of(path, trace)
    return history.followed_by(found, span.started, span.finished, state.workers[index], title, trace)


def revived(state: State) -> State | None:
    """Return the state of a job that starts anew: it knows its attempts, and counts none. None where there was none."""
    earlier = attempts_of(state)
    if not earlier:
        return None
    anew = State()
    anew.earlier = earlier
    return anew
