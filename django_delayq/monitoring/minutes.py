"""Moves what was counted from Redis into the database, and reads both as one. See `counters.py`, Note [Counters].

Note [Moved once]
A minute is inserted, rows that are there already left out, and only then deleted in Redis. So it counts once, wherever
the mover crashes, and whoever moves it beside him. What is added to a minute after it was moved is lost. As workers go
by the server's clock, only a process does that which was stopped for two minutes just before it sent its counts.

Note [Overload]
Due points are skipped as missed after an outage too, and then it is over. What falls due while workers can work, and is
skipped all the same, is more than they can do. So workers count it apart (`counters.MISSED`), by the due time. A point
does not count that fell due before the worker began, while a server was away, or while its queue or task was paused. It
is overload for as long as it goes on: where it was counted in the current minute or the last one.
"""

from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.utils.translation import gettext_noop

from .. import ledger
from ..exceptions import BrokerError
from ..index import Broker, MinuteCounts
from ..index.counters import LAG, MISSED, Counts, Tally, add_up, percentile
from ..index.web import ask
from ..recurrence import from_ms, to_ms
from ..recurrence.point import utcnow

MINUTE_MS = 60_000
#: A minute is moved when it ended so long ago.
SETTLED_MINUTES = 2
MINUTES_KEPT, HOURS_KEPT = timedelta(hours=48), timedelta(days=90)
#: So much is moved, merged or deleted at once: minutes of each queue, and batches of rows.
MOST_MINUTES, MOST_BATCHES = 200, 40


def roll_up(broker: Broker, now_ms: int) -> int:
    """Move, merge and delete what is old enough; return how many minutes were moved.

    Raises:
        BrokerError, DatabaseError: The next call goes on with what is left.
    """
    minutes = MinuteCounts(broker)
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
    fresh = _read_fresh(broker, since, until)  # first: what is moved in the meantime is in both, not in none
    counts, stored = ledger.read_rollups(since, until)
    for place, more in fresh.items():
        if place not in stored:
            counts.merge(more.items())
    return counts


def read_series(since: datetime, step: timedelta, number: int, broker: Broker | None = None) -> list[dict[str, Tally]]:
    """Return what was counted in so many steps from `since` on, summed over queues and tasks, by kind.

    `step` is a whole number of minutes; what is two days old is only known by the hour. Without a broker as a web
    request may.

    Raises:
        DatabaseError: The table cannot be read.
    """
    series: list[dict[str, Tally]] = [{} for _ in range(number)]
    until = since + number * step

    def add(at: datetime, kind: str, tally: Tally) -> None:
        add_up(series[(at - since) // step].setdefault(kind, {}), tally)

    fresh = _read_fresh(broker, since, until)
    for at, kind, queue, tally in ledger.read_rollup_rows(since, until):
        fresh.pop((queue, at), None)
        add(at, kind, tally)
    for (_, at), counts in fresh.items():
        for (kind, _, _), tally in counts.items():
            add(at, kind, tally)
    return series


def _read_fresh(broker: Broker | None, since: datetime, until: datetime) -> dict[tuple[str, datetime], Counts]:
    read = partial(_read_minutes, since=since, until=until)
    try:
        return ask(read) if broker is None else read(broker)
    except BrokerError:
        return {}


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


#: The load is that of the current minute and so many before it.
LOAD_MINUTES = 5
#: Less than this is not enough to judge by.
LEAST_SECONDS = 30.0
#: From this share of missed points on, and from this number, it is overload.
SHARE, FEWEST = 0.1, 10
#: What is said of it, see `Load.told`.
OVERLOAD = gettext_noop(
    "More falls due than the workers can do: in %(seconds)d s %(missed)d due points were skipped because they "
    "came too late, and %(executed)d executed; they waited up to %(wait)d s. Needed: %(needed).1f "
    "executions/s, done: %(done).1f. Start more workers or threads, or let schedules fall due less often."
)


class Load(NamedTuple):
    """What was counted in `seconds`: due points that were executed, and that workers missed.

    `longest_wait` is the bound of its bucket, in seconds. `goes_on`: points were missed within the last two minutes.
    """

    seconds: float
    executed: int
    missed: int
    longest_wait: float
    goes_on: bool

    @property
    def overloaded(self) -> bool:
        """True where more falls due than is executed. See Note [Overload]."""
        enough = self.goes_on and self.seconds >= LEAST_SECONDS
        return enough and self.missed >= max(FEWEST, SHARE * (self.executed + self.missed))

    @property
    def told(self) -> dict[str, float]:
        """What `OVERLOAD` says: also the executions a second that would miss nothing, and those that were made."""
        needed, done = (self.executed + self.missed) / self.seconds, self.executed / self.seconds
        return {**self._asdict(), "wait": self.longest_wait, "needed": needed, "done": done}


def read_load(broker: Broker | None = None) -> Load:
    """Return the load of the last minutes. Without a broker as a web request may.

    Raises:
        DatabaseError: The table cannot be read.
    """
    now, minute = utcnow(), timedelta(minutes=1)
    since = _instant(to_ms(now) // MINUTE_MS) - LOAD_MINUTES * minute
    tallies = [kinds.get("points", {}) for kinds in read_series(since, minute, LOAD_MINUTES + 1, broker)]
    first = next((index for index, tally in enumerate(tallies) if tally), LOAD_MINUTES)
    # Counting may have begun in the middle of its first minute, which is left out where others tell enough.
    if first and any(tallies[first + 1 :]) and (now - since - (first + 1) * minute).total_seconds() >= LEAST_SECONDS:
        first += 1
    total: Tally = {}
    for tally in tallies[first:]:
        add_up(total, tally)
    return Load(
        seconds=max(1.0, (now - since - first * minute).total_seconds()),
        executed=sum(total.get(name, 0) for name in ("succeeded", "failed", "retried")),
        missed=total.get(MISSED, 0),
        longest_wait=percentile(total, LAG, 1.0) or 0.0,
        goes_on=any(tally.get(MISSED) for tally in tallies[-2:]),
    )
