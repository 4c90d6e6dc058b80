"""Stored attempts of due points and jobs: values and their JSON. Reads nothing, knows no model.

Note [The first and the newest attempts are kept]
An attempt is stored as {"number", "started", "finished", "worker", "title", "trace"}: ms since the epoch or null, a
line, a text. To limit the size of a row, at most MOST_ATTEMPTS attempts are kept, the first and the newest, and
MOST_TRACES of them, again the first and the newest, keep their tracebacks: they show how the trouble began and what it
is now. Numbers are not reassigned, so that readers see the gap. If a worker died, the end of its attempt is unknown:
it has neither an end nor an error, and the title NOT_ENDED.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

#: Maximum attempts kept.
MOST_ATTEMPTS = 100
#: Maximum attempts that keep their tracebacks.
MOST_TRACES = 10
#: Maximum characters: of a traceback, from its end; of a line and of a worker's name.
MOST_TRACE, MOST_LINE = 20_000, 200
#: Class paths for our reasons that name no error class.
_OWN = {
    "cancelled": "django_delayq.exceptions.TaskCancelled",
    "timeout": "django_delayq.exceptions.TaskTimeout",
    "poison": "django_delayq.exceptions.JobLost",
}
#: The title of an attempt whose worker died.
NOT_ENDED = "its worker did not end it"


class Attempt(NamedTuple):
    """One execution; `number` begins at 1. `title` is '' if it succeeded or is running, `worker` is '' if unknown."""

    number: int
    started: int | None
    finished: int | None
    worker: str
    title: str
    trace: str

    @property
    def ended(self) -> bool:
        """False if its worker died."""
        return self.title != NOT_ENDED


def followed_by(
    attempts: Sequence[Attempt], started: int | None, finished: int | None, worker: str, title: str, trace: str = ""
) -> list[Attempt]:
    """Return attempts and one more, bounded. See Note [The first and the newest attempts are kept]."""
    number = attempts[-1].number + 1 if attempts else 1
    return bounded([*attempts, Attempt(number, started, finished, worker, title, trace)])


def bounded(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts to keep. See Note [The first and the newest attempts are kept]."""
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
    """Return the class path of the error that a title or a reason names, as in Django's `TaskError`."""
    path = title.partition(": ")[0]
    own = _OWN.get(title.partition(" by ")[0])
    return own or (path if "." in path else f"builtins.{path}")


def to_json(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Return attempts as plain JSON."""
    return [attempt._asdict() for attempt in attempts]


def from_json(value: Any) -> list[Attempt]:
    """Parse attempts; invalid ones are left out."""
    found = [_read(item) for item in value] if isinstance(value, list) else []
    return [attempt for attempt in found if attempt is not None]


def as_ms(value: Any) -> int | None:
    """Return an integer of JSON, None for anything else."""
    return value if isinstance(value, int) else None


def _read(item: Any) -> Attempt | None:
    if not isinstance(item, dict) or not isinstance(item.get("number"), int):
        return None
    started, finished = as_ms(item.get("started")), as_ms(item.get("finished"))
    worker, title, trace = (str(item.get(name) or "") for name in ("worker", "title", "trace"))
    return Attempt(item["number"], started, finished, worker, title, trace)
