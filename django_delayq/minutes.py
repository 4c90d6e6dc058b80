"""Moves what was counted from Redis into the database, and reads both as one. See `counters.py`, Note [Counters].

Note [Moved once]
A minute is inserted, rows that are there already left out, and only then deleted in Redis. So it counts once, wherever
the mover crashes, and whoever moves it beside him. What is added to a minute after it was moved is lost. As workers go
by the server's clock, only a process does that which was stopped for two minutes just before it sent its counts.
"""

from datetime import datetime, timedelta
from functools import partial

from . import ledger
from .broker import Broker, MinuteCounts
from .broker.web import ask
from .counters import Counts, Tally, add_up
from .exceptions import BrokerError
from .fields import utcnow
from .timing import from_ms, to_ms

MINUTE_MS = 60_000
#: All workers together look so often; somewhat less than a minute, as each asks with its heartbeat.
TURN_MS = 55_000
#: A minute is moved when it ended so long ago.
SETTLED_MINUTES = 2
MINUTES_KEPT, HOURS_KEPT = timedelta(hours=48), timedelta(days=90)
#: So much is moved, merged or deleted in one turn: minutes of each queue, and batches of rows.
MOST_MINUTES, MOST_BATCHES = 200, 40


def roll_up(broker: Broker, now_ms: int) -> int | None:
    """Move, merge and delete what is old enough; return how many minutes were moved, None where it is not our turn.

    Raises:
        BrokerError, DatabaseError: The next turn goes on with what is left.
    """
    minutes = MinuteCounts(broker)
    if not minutes.take_turn(TURN_MS):
        return None
    moved = sum(_move(minutes, queue, now_ms // MINUTE_MS - SETTLED_MINUTES - 1) for queue in broker.config.queues)
    now = from_ms(now_ms)
    try:
        for _ in range(MOST_BATCHES):
            if ledger.merge_minutes(now - MINUTES_KEPT) < ledger.BATCH:
                break
    except ledger.Overtaken:
        return moved
    for _ in range(MOST_BATCHES):
        if ledger.forget_hours(now - HOURS_KEPT) < ledger.BATCH:
            break
    return moved


def _move(minutes: MinuteCounts, queue: str, last: int) -> int:
    """Move a queue's minutes up to this one. See Note [Moved once]."""
    found = minutes.minutes(queue, 0, last)[:MOST_MINUTES]
    for minute in found:
        counts = minutes.read(queue, minute)
        if counts:
            ledger.add_minute(_instant(minute), counts)
        minutes.forget(queue, minute)
    return len(found)


def read_counts(since: datetime, until: datetime | None = None, broker: Broker | None = None) -> Counts:
    """Return what was counted in the minutes, or older the hours, that begin between these instants.

    Without a broker as a web request may. Where Redis does not answer, what the table has: all but the last minutes.

    Raises:
        DatabaseError: The table cannot be read.
    """
    until = until or utcnow() + timedelta(minutes=1)
    read = partial(_read_minutes, since=since, until=until)
    try:
        fresh = ask(read) if broker is None else read(broker)  # first: what is moved meanwhile is in both, not in none
    except BrokerError:
        fresh = {}
    counts, stored = ledger.read_rollups(since, until)
    for place, more in fresh.items():
        if place not in stored:
            counts.merge(more.items())
    return counts


def read_series(since: datetime, step: timedelta, number: int) -> list[dict[str, Tally]]:
    """Return what was counted in so many steps from `since` on, summed over queues and tasks, by kind.

    `step` is a whole number of minutes; what is two days old is only known by the hour. As a web request may.

    Raises:
        DatabaseError: The table cannot be read.
    """
    series: list[dict[str, Tally]] = [{} for _ in range(number)]
    until = since + number * step

    def add(at: datetime, kind: str, tally: Tally) -> None:
        add_up(series[(at - since) // step].setdefault(kind, {}), tally)

    try:
        fresh = ask(partial(_read_minutes, since=since, until=until))
    except BrokerError:
        fresh = {}
    for at, kind, queue, tally in ledger.read_rollup_rows(since, until):
        fresh.pop((queue, at), None)
        add(at, kind, tally)
    for (_, at), counts in fresh.items():
        for (kind, _, _), tally in counts.items():
            add(at, kind, tally)
    return series


def _read_minutes(broker: Broker, since: datetime, until: datetime) -> dict[tuple[str, datetime], Counts]:
    minutes = MinuteCounts(broker)
    first, last = -(-to_ms(since) // MINUTE_MS), (to_ms(until) - 1) // MINUTE_MS
    return {
        (queue, _instant(minute)): minutes.read(queue, minute)
        for queue in broker.config.queues
        for minute in minutes.minutes(queue, first, last)
    }


def _instant(minute: int) -> datetime:
    return from_ms(minute * MINUTE_MS)
