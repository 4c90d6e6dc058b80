"""Schedules pruning by workers: when, for how long, and the record of the last pass. `ledger/retention.py` deletes.

Note [The upkeep worker prunes and rests]
The worker with the upkeep lease prunes (`worker/upkeep.py`, Note [One upkeep worker]). A pass visits all schedules. The
worker rests after each batch for RESTS times its duration, so that others can write to SQLite in between. An
interrupted pass is due again immediately. Concurrent passes are harmless: each skips rows that the other has locked.
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

#: Seconds between two passes.
EVERY_SECONDS = 3600.0
#: Maximum duration before a worker checks for other work, in seconds.
AT_ONCE_SECONDS = 20.0
#: The rest after a batch, as a multiple of its duration, and its maximum: a stopping worker waits for it.
RESTS, MOST_REST_SECONDS = 9.0, 0.5


@dataclass(frozen=True, slots=True)
class LastPass:
    """The last pass: when it ended or was interrupted, and what it deleted."""

    database: str
    at_ms: int
    rows: int = 0
    left: int = 0  # rows that were locked
    behind_seconds: float = 0.0  # for how long the oldest row could have been pruned
    after: int | None = 0  # the last schedule that is done; None if the pass is complete

    @property
    def finished(self) -> bool:
        return self.after is None

    @property
    def at(self) -> datetime:
        return from_ms(self.at_ms)


def read_last(broker: Broker) -> LastPass | None:
    """Return the last pass over this database; None if unknown."""
    try:
        value = json.loads(broker.read_note("pruned") or "")
        at_ms, rows, left = (int(value[name]) for name in ("at_ms", "rows", "left"))
        behind = float(value["behind_seconds"])
        after = None if value["after"] is None else min(int(value["after"]), ledger.LAST_KEY)
        from_ms(at_ms)  # raises if it is invalid
        last = LastPass(str(value["database"]), at_ms, rows, left, behind, after)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return last if last.database == sync.read_fingerprint() else None


def prune_if_due(
    broker: Broker, *, go_on: Callable[[], bool] = lambda: True, seconds: float = AT_ONCE_SECONDS
) -> LastPass | None:
    """Prune if it is due, until `go_on`, called after each batch, returns False, or `seconds` have passed."""
    last = read_last(broker)
    if last is not None and last.finished and 0 <= broker.read_now_ms() - last.at_ms < EVERY_SECONDS * 1000:
        return None
    if last is None or last.finished:
        last = LastPass(sync.read_fingerprint(), 0)
    until = time.monotonic() + seconds
    for batch, pruned in prune_batches(last.after or 0, rests=RESTS):
        last = replace(
            last,
            rows=last.rows + len(pruned.rows),
            left=last.left + pruned.left,
            behind_seconds=max(last.behind_seconds, batch.late),
            after=None if batch.done >= ledger.LAST_KEY else batch.done,
        )
        if time.monotonic() >= until or not go_on():
            break
    last = replace(last, at_ms=broker.read_now_ms())
    broker.write_note("pruned", json.dumps(asdict(last)))
    return last


def prune_batches(after: int = 0, *, rests: float = 1.0) -> Iterator[tuple[ledger.Batch, ledger.Pruned]]:
    """Prune the schedules after this key in batches, a transaction each; rest `rests` times as long after each."""
    began = time.monotonic()
    for batch in ledger.find_prunable(utcnow(), after):
        pruned = ledger.prune(batch.rows)
        yield batch, pruned
        if batch.rows:
            time.sleep(min(rests * (time.monotonic() - began), MOST_REST_SECONDS))
        began = time.monotonic()
