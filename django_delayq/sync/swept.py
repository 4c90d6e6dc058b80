"""When a full sweep is due, and the record of the last one.

Note [When a full sweep is due]
The next sweep is due if the record of the last one is older than FULL_SECONDS or missing (a flush, or another
database took the prefix over), or if the server's run id has changed since that sweep began: the server was restarted
or replaced, perhaps with older data. The same rule finds what was missed while no worker ran. The worker with the
upkeep lease makes the sweep (`worker/upkeep.py`, Note [One lease]).
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from ..index import Broker
from ..recurrence import from_ms
from .layout import check_layout, fingerprint, store_layout
from .sweep import Report, full_sweep

#: Maximum delay until damage, or an edit by SQL, is found, in seconds.
FULL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class LastSweep:
    """A finished full sweep. `at_ms` is by Redis' clock, `run_id` the server's at the start, `seconds` the duration."""

    at_ms: int
    run_id: str
    database: str
    checked: int
    mended: int
    seconds: float

    @property
    def at(self) -> datetime:
        return from_ms(self.at_ms)

    def overdue_seconds(self, now_ms: int) -> float:
        """Return for how long the next sweep has been due; 0 before that."""
        return max(0.0, (now_ms - self.at_ms) / 1000 - FULL_SECONDS)


def read_last(broker: Broker) -> LastSweep | None:
    """Return the last full sweep; None if unknown."""
    try:
        value = json.loads(broker.last_sweep() or "")
        at_ms, checked, mended = (int(value[name]) for name in ("at_ms", "checked", "mended"))
        took = timedelta(seconds=float(value["seconds"]))
        from_ms(at_ms)  # raises if it is invalid
        return LastSweep(at_ms, str(value["run_id"]), str(value["database"]), checked, mended, took.total_seconds())
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def is_due(
    broker: Broker, *, every_seconds: float = FULL_SECONDS, now_ms: int | None = None, run_ids: str | None = None
) -> bool:
    """Return True if a full sweep is due. See Note [When a full sweep is due].

    `now_ms` (the server's clock) and `run_ids` (of the servers) save queries if the caller has just read them.
    """
    last = read_last(broker)
    servers = broker.run_ids() if run_ids is None else run_ids
    if last is None or last.database != fingerprint() or last.run_id != servers:
        return True
    age_ms = (broker.now_ms() if now_ms is None else now_ms) - last.at_ms
    return not 0 <= age_ms < every_seconds * 1000


def sweep_if_due(
    broker: Broker,
    *,
    every_seconds: float = FULL_SECONDS,
    go_on: Callable[[int], bool] = lambda checked: True,
    now_ms: int | None = None,
    run_ids: str | None = None,
) -> Report | None:
    """Make a full sweep if one is due; otherwise return None. `now_ms`, `run_ids`: see `is_due`.

    `go_on`: see `full_sweep`. After an interruption, the next sweep starts over.

    Raises:
        ForeignLayout: The prefix is another database's.
        BrokerError: Redis failed; the next call starts over.
    """
    if not is_due(broker, every_seconds=every_seconds, now_ms=now_ms, run_ids=run_ids):
        return None
    check_layout(broker)
    return sweep_now(broker, go_on=go_on)


def sweep_now(broker: Broker, *, go_on: Callable[[int], bool] = lambda checked: True) -> Report:
    """Make a full sweep, even if a worker is making one, and record it if it completes."""
    run_id, began = broker.run_ids(), time.monotonic()
    report = full_sweep(broker, go_on=go_on)
    if report.done:
        seconds = round(time.monotonic() - began, 3)
        last = LastSweep(broker.now_ms(), run_id, fingerprint(), report.checked, len(report.lines), seconds)
        broker.note_sweep(json.dumps(asdict(last)))
    return report


def adopt(broker: Broker, *, go_on: Callable[[int], bool] = lambda checked: True) -> Report:
    """Take the prefix over for this database, whatever its former owner: restored, copied or moved databases.

    Writes the layout, gives every shard a new epoch without leases, and releases the upkeep lease: workers of the
    other database end at their next claim or sweep, within 30 s, and cannot settle what they still execute. Then
    compares everything: newer generations are forced down, points ahead of the ledger rewound, other members removed.
    What workers of this database execute at that moment may be executed again.

    Raises:
        BrokerError: Redis failed; run it again.
    """
    store_layout(broker)
    broker.note_sweep(None)
    broker.take_over(broker.shards())
    return sweep_now(broker, go_on=go_on)
