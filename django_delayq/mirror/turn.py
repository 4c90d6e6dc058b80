"""Full sweeps by one worker at a time: whose turn it is, and when the next one is due.

Note [Turns]
Any worker may sweep, and sweeps do no harm to each other; together they would only do the work several times. So the
one that sweeps sets a mark that lasts for some seconds and is renewed after each page: where the sweeper dies, the mark
goes, and the next worker that looks begins anew. A finished sweep is noted with its time and with the run id that the
server had when it began. A sweep is due when the note is older than FULL_SECONDS, or missing (flushed, or another
database took the prefix over), or of another run id: the server was restarted or replaced, perhaps with older data.
That holds at a worker's start too: what was missed while no worker ran is found because the note is old by then.
"""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from ..broker import Broker
from ..timing import from_ms
from .layout import check_layout, fingerprint, store_layout
from .sweep import Report, full_sweep

#: A definition that SQL edited, or damage, waits for so long at most.
FULL_SECONDS = 600.0
#: How long the sweeper may take for a page before another worker may begin anew.
TTL_MS = 30_000


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
    """Say whether a full sweep is due. See Note [Turns] and, for what is asked for if not given, `sweep_in_turn`.

    Raises:
        BrokerError: Redis does not answer.
    """
    last = read_last(broker)
    servers = broker.run_ids() if run_ids is None else run_ids
    if last is None or last.database != fingerprint() or last.run_id != servers:
        return True
    age_ms = (broker.now_ms() if now_ms is None else now_ms) - last.at_ms
    return not 0 <= age_ms < every_seconds * 1000


def sweep_in_turn(
    broker: Broker,
    *,
    every_seconds: float = FULL_SECONDS,
    go_on: Callable[[int], bool] = lambda checked: True,
    now_ms: int | None = None,
    run_ids: str | None = None,
) -> Report | None:
    """Make a full sweep if one is due and nobody is at it; None where not. See Note [Turns].

    `go_on` is asked as by `full_sweep`; where it says no, the sweep ends, and another worker begins anew. `now_ms` is
    the server's clock, and `run_ids` what names the servers, of whoever has just asked for them.

    Raises:
        ForeignLayout: The prefix is another database's.
        BrokerError: Redis failed on the way; another worker, or the next call, begins anew.
    """
    if not is_due(broker, every_seconds=every_seconds, now_ms=now_ms, run_ids=run_ids):
        return None
    check_layout(broker)
    token = secrets.token_hex(8)
    if not broker.begin_sweep(token, ttl_ms=TTL_MS):
        return None
    try:
        if not is_due(broker, every_seconds=every_seconds):  # another one has just finished
            return None
        return sweep_now(broker, go_on=lambda checked: go_on(checked) and broker.keep_sweep(token, ttl_ms=TTL_MS))
    finally:
        broker.end_sweep(token)


def sweep_now(broker: Broker, *, go_on: Callable[[int], bool] = lambda checked: True) -> Report:
    """Make a full sweep, whoever else is at it, and note it.

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

    The layout is written first, then every shard gets another epoch and loses its leases, and the sweep that is under
    way loses its mark: so workers of the other database find at their next claim or sweep, within 30 s in any case,
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
