"""Moves counts from Redis to the database, and reads both. See `index/counters.py`, Note [Counts are approximate].

Note [A minute counts once]
A minute is inserted, ignoring rows that exist, and only then deleted in Redis. So it counts once, even if the mover
crashes or several workers move the same minute. Counts added to a minute after its move are lost.

Note [Overload misses points]
Overload means that points are skipped although workers can work. Workers count them (`counters.MISSED`) by due time,
except points that fell due before the worker began, during an outage of a server, or during a pause.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.utils.translation import gettext_noop

from .. import ledger
from ..exceptions import BrokerError
from ..index import Broker, MinuteCounts
from ..index.counters import LATENCY, MISSED, Counts, Key, Tally, add_up, compute_percentile
from ..index.web import ask
from ..recurrence import from_ms, to_ms
from ..recurrence.point import utcnow

MINUTE_MS, MINUTE = 60_000, timedelta(minutes=1)
#: Minutes after its end before a minute is moved.
SETTLED_MINUTES = 2
MINUTES_KEPT, HOURS_KEPT = timedelta(hours=48), timedelta(days=90)
#: Maximum for one call: minutes moved of each queue, and batches of rows merged or deleted.
MOST_MINUTES, MOST_BATCHES = 200, 40


def roll_up(broker: Broker, now_ms: int) -> int:
    """Move, merge and delete counts by age; return the number of moved minutes. After an error, call it again."""
    minutes = MinuteCounts(broker)
    moved = sum(_move(minutes, queue, now_ms // MINUTE_MS - SETTLED_MINUTES - 1) for queue in broker.config.queues)
    now = from_ms(now_ms)
    with suppress(ledger.Overtaken):
        for work, before in ((ledger.merge_minutes, now - MINUTES_KEPT), (ledger.forget_hours, now - HOURS_KEPT)):
            for _ in range(MOST_BATCHES):
                if work(before) < ledger.BATCH:
                    break
    return moved


def _move(minutes: MinuteCounts, queue: str, last: int) -> int:
    """Move a queue's minutes up to `last`. See Note [A minute counts once]."""
    found = minutes.list_minutes(queue, 0, last)[:MOST_MINUTES]
    for minute in found:
        counts = minutes.read(queue, minute)
        if counts:
            ledger.add_minute(from_ms(minute * MINUTE_MS), counts)
        minutes.forget(queue, minute)
    return len(found)


class Row(NamedTuple):
    """The counts of one kind, queue and task in the minute (older than two days: hour) that begins at `at`."""

    at: datetime
    key: Key
    tally: Tally


def read_rows(since: datetime, until: datetime | None = None, broker: Broker | None = None) -> list[Row]:
    """Return the counts of minutes that begin between these instants; without the newest if Redis does not answer."""
    until, stored = until or utcnow() + MINUTE, set[tuple[str, datetime]]()
    fresh = _read_fresh(broker, since, until)  # first: a minute moved in between is then in both, not in neither
    rows = []
    for at, seconds, key, tally in ledger.read_rollups(since, until):
        rows.append(Row(at, key, tally))
        if seconds == MINUTE_MS // 1000:
            stored.add((key[1], at))
    return rows + [row for row in fresh if (row.key[1], row.at) not in stored]


def sum_rows(rows: Iterable[Row]) -> Counts:
    counts = Counts()
    counts.merge((row.key, row.tally) for row in rows)
    return counts


def sum_steps(rows: Iterable[Row], since: datetime, step: timedelta, number: int) -> list[dict[str, Tally]]:
    """Return the sums of `number` steps from `since` on by kind; `step` is a whole number of minutes."""
    series: list[dict[str, Tally]] = [{} for _ in range(number)]
    for at, key, tally in rows:
        if 0 <= (index := (at - since) // step) < number:
            add_up(series[index].setdefault(key[0], {}), tally)
    return series


def _read_fresh(broker: Broker | None, since: datetime, until: datetime) -> list[Row]:
    read = partial(_read_minutes, since=since, until=until)
    try:
        return ask(read) if broker is None else read(broker)
    except BrokerError:
        return []


def _read_minutes(broker: Broker, since: datetime, until: datetime) -> list[Row]:
    minutes = MinuteCounts(broker)
    first, last = -(-to_ms(since) // MINUTE_MS), (to_ms(until) - 1) // MINUTE_MS
    return [
        Row(from_ms(minute * MINUTE_MS), key, tally)
        for queue in broker.config.queues
        for minute in minutes.list_minutes(queue, first, last)
        for key, tally in minutes.read(queue, minute).items()
    ]


#: Number of minutes before the current one that make up the load.
LOAD_MINUTES = 5
#: Minimum seconds of counts for a judgement.
LEAST_SECONDS = 30.0
#: Minimum share and minimum number of missed points that are overload.
SHARE, FEWEST = 0.1, 10
#: The message, filled from `Load.values`.
OVERLOAD = gettext_noop(
    "More runs are due than the workers can execute: in %(seconds)d s %(missed)d due times "
    "were skipped because they were too late, and %(executed)d ran, after up to %(wait)d s. "
    "Needed: %(needed).1f runs/s; done: %(done).1f. Start more workers or threads, or make "
    "schedules due less often."
)


class Load(NamedTuple):
    """Due points executed and missed by workers within `seconds`.

    `longest_wait` is its bucket's bound in seconds. `goes_on`: points were missed in the current minute or the last.
    """

    seconds: float
    executed: int
    missed: int
    longest_wait: float
    goes_on: bool

    @property
    def overloaded(self) -> bool:
        """True if more points fall due than workers execute. See Note [Overload misses points]."""
        enough = self.goes_on and self.seconds >= LEAST_SECONDS
        return enough and self.missed >= max(FEWEST, SHARE * (self.executed + self.missed))

    @property
    def values(self) -> dict[str, float]:
        """The values of `OVERLOAD`; `needed` and `done` are executions per second."""
        needed, done = (self.executed + self.missed) / self.seconds, self.executed / self.seconds
        return {**self._asdict(), "wait": self.longest_wait, "needed": needed, "done": done}


def read_load(broker: Broker) -> Load:
    now = utcnow()
    return sum_load(read_rows(get_load_start(now), broker=broker), now)


def get_load_start(now: datetime) -> datetime:
    return now.replace(second=0, microsecond=0) - LOAD_MINUTES * MINUTE


def sum_load(rows: Iterable[Row], now: datetime) -> Load:
    since = get_load_start(now)
    tallies = [kinds.get("points", {}) for kinds in sum_steps(rows, since, MINUTE, LOAD_MINUTES + 1)]
    first = next((index for index, tally in enumerate(tallies) if tally), LOAD_MINUTES)
    # Counting may have begun in the middle of the first minute, so it is left out if the others suffice.
    if first and any(tallies[first + 1 :]) and (now - since - (first + 1) * MINUTE).total_seconds() >= LEAST_SECONDS:
        first += 1
    total: Tally = {}
    for tally in filter(None, tallies[first:]):
        add_up(total, tally)
    return Load(
        seconds=max(1.0, (now - since - first * MINUTE).total_seconds()),
        executed=sum(total.get(name, 0) for name in ("succeeded", "failed", "retried")),
        missed=total.get(MISSED, 0),
        longest_wait=(compute_percentile(total, LATENCY, 1.0) or 0.0) if total else 0.0,
        goes_on=any(tally.get(MISSED) for tally in tallies[-2:]),
    )
