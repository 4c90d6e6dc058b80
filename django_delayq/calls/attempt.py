"""Stored attempts of due points and jobs: values and their JSON. Reads nothing, knows no model.

Note [The first and the newest attempts are kept]
To limit the size of a row, at most MOST_ATTEMPTS attempts are kept, and MOST_TRACES of them keep their tracebacks: they
show how the trouble began and what it is now. Numbers are not reassigned, so that readers see the gap. Times are ms
since the epoch or null. An attempt whose worker died has neither an end nor an error, and the title NOT_ENDED.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

#: Maximum attempts kept.
MOST_ATTEMPTS = 100
#: Maximum attempts that keep their tracebacks.
MOST_TRACES = 10
#: Maximum characters: of a traceback, from its end; of a line and of a worker's name.
MOST_TRACE, MOST_LINE = 20_000, 200
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
        return self.title != NOT_ENDED


def add_attempt(
    attempts: Sequence[Attempt], started: int | None, finished: int | None, worker: str, title: str, trace: str = ""
) -> list[Attempt]:
    """Return attempts and one more. See Note [The first and the newest attempts are kept]."""
    number = attempts[-1].number + 1 if attempts else 1
    title = " ".join(title.split())[:MOST_LINE]
    kept = [*attempts, Attempt(number, started, finished, worker[:MOST_LINE], title, trace[-MOST_TRACE:])]
    if len(kept) > MOST_ATTEMPTS:
        del kept[1]
    if len(kept) > MOST_TRACES:
        kept[-MOST_TRACES] = kept[-MOST_TRACES]._replace(trace="")
    return kept


def to_json(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    return [attempt._asdict() for attempt in attempts]


def from_json(value: Any) -> list[Attempt]:
    """Parse the attempts of a row, without garbage and without what later versions may add to them."""
    return [
        Attempt(
            each["number"], each.get("started"), each.get("finished"),
            *(each.get(name) or "" for name in ("worker", "title", "trace")),
        )
        for each in value or () if isinstance(each, dict) and isinstance(each.get("number"), int)
    ]  # fmt: skip
