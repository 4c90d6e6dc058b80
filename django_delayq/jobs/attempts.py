"""The attempts of a job: when each of them began and ended, and those of before it was revived. Reads nothing.

Errors and workers stand in the state as Django's `TaskResult` wants them. Beside them stand the times, one for each
attempt that failed, in their order, and one wherever an execution did not end. See `record.py`, Note [Past].
"""

from .. import history
from ..exceptions import JobCancelled
from ..history import Attempt, followed_by
from .record import Span, State

_CANCELLED = f"{JobCancelled.__module__}.{JobCancelled.__qualname__}"


def note_failed(state: State, ended: int) -> None:
    """Note the times of the attempt that has just failed. Its error and its worker are noted already."""
    state.times = _times(state, ended)


def note_lost(state: State, count: int, worker: str, started: int | None) -> None:
    """Note executions that did not end: so many, of which only the last one's worker may be known, and its claim."""
    if count > 0:
        last = Span(started, None, worker[: history.MOST_LINE])
        state.times = [*state.times, *[Span(None, None, "")] * (count - 1), last]


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
    found, ended = list(state.earlier), 0
    for span in _times(state, state.finished):
        if span.lost:
            found = followed_by(found, span.started, None, span.worker or "", history.NOT_ENDED)
        elif ended < len(state.workers):
            found = followed_by(found, span.started, span.finished, state.workers[ended], *_error(state, ended))
            ended += 1
    return found


def _times(state: State, ended: int | None) -> list[Span]:
    """Return the noted times, and those of attempts without: of the last one, and of others of which none are known."""
    missing = len(state.workers) - sum(not span.lost for span in state.times)
    if missing < 1:
        return list(state.times)
    return [*state.times, *[Span(None, None)] * (missing - 1), Span(state.attempted, ended)]


def _error(state: State, index: int) -> tuple[str, str]:
    """Return the title and the traceback of an attempt, '' where it has none."""
    path, trace = state.errors[index] if index < len(state.errors) else ("", "")
    if not path or (state.left_out and index == len(state.workers) - 1):
        return "", ""
    return history.title_of(path, trace), trace


def revived(state: State) -> State | None:
    """Return the state of a job that starts anew: it knows its attempts, and counts none. None where there was none."""
    anew = State()
    anew.earlier = attempts_of(state)
    return anew if anew.earlier else None
