"""Pruning by the workers: when, for how long at once, and what is known of the last time.

Which rows go says `ledger/pruning.py`; they are found and deleted by `ledger/pruning.py`.

Note [Passes of pruning]
The worker that does the upkeep prunes (`worker/upkeep.py`, Note [One lease]). A pass goes through all schedules; a new
one is due EVERY_SECONDS after the end of the last. Between two batches the worker does its small chores, and rests for
RESTS times as long as the batch took: so the others get most of the time of a database that has one writer. Where the
worker has something else to do, a pass ends with a note of how far it came, and is due again at once: it continues
there. Where the worker dies, the next one continues at the note before that. Two that prune side by side, as where a
person gives the command, do no harm: each leaves out what the other has locked.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from .. import ledger, sync
from ..index import Broker
from ..recurrence import from_ms
from ..recurrence.point import utcnow

#: Between two passes.
EVERY_SECONDS = 3600.0
#: A worker prunes for so long at once, and looks then what else is to be done.
AT_ONCE_SECONDS = 20.0
#: The rest after a batch, as a multiple of its time; a worker that is to stop waits for no longer than the longest.
RESTS, MOST_REST_SECONDS = 9.0, 0.5


@dataclass(frozen=True, slots=True)
class LastPass:
    """The last pass: when it ended or was noted, how many rows went, how many stay as others had locked them.

    `seconds` is how long it took, `behind_seconds` how long ago the oldest row that it found should have gone. `after`
    is the last schedule that it has done, None where it came to its end.
    """

    database: str
    at_ms: int
    rows: int = 0
    left: int = 0
    seconds: float = 0.0
    behind_seconds: float = 0.0
    after: int | None = 0

    @property
    def finished(self) -> bool:
        """False where there is more to do, at once."""
        return self.after is None

    @property
    def at(self) -> datetime:
        """When it ended, or was noted."""
        return from_ms(self.at_ms)


def read_last(broker: Broker) -> LastPass | None:
    """Return the last pass over this database; None where none is known.

    Raises:
        BrokerError: Redis does not answer.
    """
    try:
        value = json.loads(broker.last_pruning() or "")
        at_ms, rows, left = (int(value[name]) for name in ("at_ms", "rows", "left"))
        seconds, behind = (float(value[name]) for name in ("seconds", "behind_seconds"))
        after = None if value["after"] is None else min(int(value["after"]), ledger.LAST_KEY)
        from_ms(at_ms)  # or it is garbage
        last = LastPass(str(value["database"]), at_ms, rows, left, seconds, behind, after)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return last if last.database == sync.fingerprint() else None


def prune_if_due(
    broker: Broker, *, go_on: Callable[[], bool] = lambda: True, seconds: float = AT_ONCE_SECONDS
) -> LastPass | None:
    """Prune if it is time; return how far it came, None where not. See Note [Passes of pruning].

    `go_on` is asked after each batch; where it says no, or so many seconds have passed, the pass ends there.

    Raises:
        BrokerError, DatabaseError: What went is gone; the next call, of whatever worker, continues.
    """
    if not _is_due(broker):
        return None
    until = time.monotonic() + seconds
    return _prune(broker, lambda: time.monotonic() < until and go_on())


def _is_due(broker: Broker) -> bool:
    last = read_last(broker)
    if last is None or not last.finished:
        return True
    return not 0 <= broker.now_ms() - last.at_ms < EVERY_SECONDS * 1000


def _prune(broker: Broker, go_on: Callable[[], bool]) -> LastPass:
    """Continue the pass that is noted, or begin one; note how far it comes."""
    last = read_last(broker)
    if last is None or last.finished:
        last = LastPass(sync.fingerprint(), 0)
    began = time.monotonic()
    for batch, pruned in prune_batches(last.after or 0, rests=RESTS):
        last = replace(
            last,
            rows=last.rows + len(pruned.rows),
            left=last.left + pruned.left,
            behind_seconds=max(last.behind_seconds, batch.late),
            after=None if batch.done >= ledger.LAST_KEY else batch.done,
        )
        if not go_on():
            break
    last = replace(last, at_ms=broker.now_ms(), seconds=round(last.seconds + time.monotonic() - began, 3))
    broker.note_pruning(json.dumps(asdict(last)))
    return last


def prune_batches(after: int = 0, *, rests: float = 1.0) -> Iterator[tuple[ledger.Batch, ledger.Pruned]]:
    """Prune what is found behind this schedule, batch by batch, each in a transaction of its own.

    In between it rests for `rests` times as long as the batch took.

    Raises:
        DatabaseError: What went before is gone.
    """
    began = time.monotonic()
    for batch in ledger.find_prunable(utcnow(), after):
        pruned = ledger.prune(batch.rows)
        yield batch, pruned
        if batch.rows:
            time.sleep(min(rests * (time.monotonic() - began), MOST_REST_SECONDS))
        began = time.monotonic()
