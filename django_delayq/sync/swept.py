"""When a full sweep is due, and what is noted of the last one.

Note [When a full sweep is due]
A finished sweep is noted with its time and with the run id that the server had when it began. The next one is due when
the note is older than FULL_SECONDS, or missing (flushed, or another database took the prefix over), or of another run
id: the server was restarted or replaced, perhaps with older data. That holds at a worker's start too: what was missed
while no worker ran is found because the note is old by then. The worker that does the upkeep makes the sweep
(`worker/upkeep.py`, Note [One lease]).
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

#: A definition that SQL edited, or damage, waits for so long at most.
FULL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class LastSweep:
    """A full sweep that came to its end: `at_ms` by the server's clock. `run_id` is the server's at its start.

    `seconds` is how long it took.
    """

    at_ms: int
    run_id: str
    database: str
    checked: int
    mended: int
    seconds: float

    @property
    def at(self) -> datetime:
        """When it ended."""
        return from_ms(self.at_ms)

    def overdue_seconds(self, now_ms: int) -> float:
        """Return for how long the next one has been due; 0 before that."""
        return max(0.0, (now_ms - self.at_ms) / 1000 - FULL_SECONDS)


def read_last(broker: Broker) -> LastSweep | None:
    """Return the last full sweep; None where none is known.

    Raises:
        BrokerError: Redis does not answer.
    """
    try:
        value = json.loads(broker.last_sweep() or "")
        at_ms, checked, mended = (int(value[name]) for name in ("at_ms", "checked", "mended"))
        took = timedelta(seconds=float(value["seconds"]))
        from_ms(at_ms)  # or it is garbage
        return LastSweep(at_ms, str(value["run_id"]), str(value["database"]), checked, mended, took.total_seconds())
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def is_due(
    broker: Broker, *, every_seconds: float = FULL_SECONDS, now_ms: int | None = None, run_ids: str | None = None
) -> bool:
    """Say whether a full sweep is due. See Note [When a full sweep is due].

    `now_ms` is the server's clock, and `run_ids` what names the servers, where the caller has just asked for them.

    Raises:
        BrokerError: Redis does not answer.
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
    """Make a full sweep if one is due; None where not. `now_ms` and `run_ids` are those of `is_due`.

    `go_on` is asked as by `full_sweep`; where it says no, the sweep ends, and the next one begins anew.

    Raises:
        ForeignLayout: The prefix is another database's.
        BrokerError: Redis failed on the way; the next call begins anew.
    """
    if not is_due(broker, every_seconds=every_seconds, now_ms=now_ms, run_ids=run_ids):
        return None
    check_layout(broker)
    return sweep_now(broker, go_on=go_on)


def sweep_now(broker: Broker, *, go_on: Callable[[int], bool] = lambda checked: True) -> Report:
    """Make a full sweep, whether a worker is at one or not, and note it.

    Raises:
        BrokerError: Redis failed on the way; nothing is noted.
    """
    run_id, began = broker.run_ids(), time.monotonic()
    report = full_sweep(broker, go_on=go_on)
    if report.done:
        seconds = round(time.monotonic() - began, 3)
        last = LastSweep(broker.now_ms(), run_id, fingerprint(), report.checked, len(report.lines), seconds)
        broker.note_sweep(json.dumps(asdict(last)))
    return report


def adopt(broker: Broker, *, go_on: Callable[[int], bool] = lambda checked: True) -> Report:
    """Take the prefix over for this database, whatever it was before: restored, copied, or moved elsewhere.

    The layout is written first, then every shard gets another epoch and loses its leases, and the worker that does the
    upkeep loses that too: so workers of the other database find at their next claim or sweep, within 30 s in any case,
    that the prefix is not theirs, and end; what they still execute they cannot settle. Then everything is compared:
    newer generations are forced down, points ahead of the ledger rewound, other members removed. Workers of this
    database may go on, but what they execute at this moment may be executed a second time.

    Raises:
        BrokerError: Redis failed on the way; run it again.
    """
    store_layout(broker)
    broker.note_sweep(None)
    broker.take_over(broker.shards())
    return sweep_now(broker, go_on=go_on)
