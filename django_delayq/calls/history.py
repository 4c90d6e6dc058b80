"""Attempts as they are kept, of due points and of jobs alike: values and their JSON. Reads nothing, knows no model.

Note [What is kept of attempts]
An attempt is kept as {"number", "started", "finished", "worker", "title", "trace"}: ms since the epoch or null, a line,
a text. So that no row and no text in Redis grows without limit, the first attempt and the newest ones are kept,
MOST_ATTEMPTS in all, and of these the first and the newest keep their tracebacks, MOST_TRACES in all: what began the
trouble, and what it looks like now. Numbers go on where attempts are left out, so that a reader sees the gap.
Where a worker died, nobody knows how the attempt ended: it has neither an end nor an error, and says so.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

#: So many attempts are kept: the first one and the newest.
MOST_ATTEMPTS = 100
#: So many of them keep their tracebacks: the first one and the newest.
MOST_TRACES = 10
#: So much of a traceback is kept, from its end, and so much of a line and of a worker's name.
MOST_TRACE, MOST_LINE = 20_000, 200
#: What the reasons of ours stand for that name no error.
_OWN = {
    "cancelled": "django_delayq.exceptions.TaskCancelled",
    "timeout": "django_delayq.exceptions.TaskTimeout",
    "poison": "django_delayq.exceptions.JobLost",
}
#: The title of an attempt whose worker died.
NOT_ENDED = "its worker did not end it"


class Attempt(NamedTuple):
    """One execution, from 1 on. `title` is '' where it has succeeded or still runs, `worker` where that is unknown."""

    number: int
    started: int | None
    finished: int | None
    worker: str
    title: str
    trace: str

    @property
    def ended(self) -> bool:
        """False where its worker died."""
        return self.title != NOT_ENDED


def followed_by(
    attempts: Sequence[Attempt], started: int | None, finished: int | None, worker: str, title: str, trace: str = ""
) -> list[Attempt]:
    """Return attempts and one more, all that is to be kept of them. See Note [What is kept of attempts]."""
    number = attempts[-1].number + 1 if attempts else 1
    return bounded([*attempts, Attempt(number, started, finished, worker, title, trace)])


def bounded(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return what is to be kept of attempts. See Note [What is kept of attempts]."""
    if len(attempts) > MOST_ATTEMPTS:
        attempts = [attempts[0], *attempts[1 - MOST_ATTEMPTS :]]
    newest = len(attempts) - MOST_TRACES
    return [_cut(attempt, traced=not 0 < index <= newest) for index, attempt in enumerate(attempts)]


def _cut(attempt: Attempt, *, traced: bool) -> Attempt:
    return attempt._replace(
        worker=attempt.worker[:MOST_LINE],
        title=" ".join(attempt.title.split())[:MOST_LINE],
        trace=attempt.trace[-MOST_TRACE:] if traced else "",
    )


def path_of_title(title: str) -> str:
    """Return the class path of the error that a title or a reason names, as Django's `TaskError` has it."""
    path = title.partition(": ")[0]
    own = _OWN.get(title.partition(" by ")[0])
    return own or (path if "." in path else f"builtins.{path}")


def to_json(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Return attempts as plain JSON."""
    return [attempt._asdict() for attempt in attempts]


def from_json(value: Any) -> list[Attempt]:
    """Return the attempts of such JSON. What is none is left out."""
    found = [_read(item) for item in value] if isinstance(value, list) else []
    return [attempt for attempt in found if attempt is not None]


def as_ms(value: Any) -> int | None:
    """Return a number of JSON, None for anything else."""
    return value if isinstance(value, int) else None


def _read(item: Any) -> Attempt | None:
    if not isinstance(item, dict) or not isinstance(item.get("number"), int):
        return None
    started, finished = as_ms(item.get("started")), as_ms(item.get("finished"))
    worker, title, trace = (str(item.get(name) or "") for name in ("worker", "title", "trace"))
    return Attempt(item["number"], started, finished, worker, title, trace)
