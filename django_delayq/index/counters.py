"""Counts of outcomes, and histograms of waits and durations: in memory, and by minute in Redis.

Note [Counts are approximate]
Each worker counts in memory and once a second adds its counts to the minute's hash in Redis (`worker/recorder.py`).
Two minutes later a worker moves the hash into the table `Rollup` (`monitoring/minutes.py`). The ledger is
authoritative, counters are not: a crash or Redis may lose counts, and a lost reply may count the last second twice.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from operator import methodcaller

from . import keys
from .broker import Broker
from .connection import DamagedKeys
from .keys import Shard
from .scripts import decode_text, parse_number

#: Upper bounds of the buckets of all histograms, in ms; one more bucket is unbounded.
BOUNDS_MS = (
    1, 2, 4, 8, 15, 30, 60, 125, 250, 500,
    1_000, 2_000, 4_000, 8_000, 15_000, 30_000, 60_000,
    120_000, 240_000, 480_000, 900_000, 1_800_000, 3_600_000,
)  # fmt: skip
#: Counts expire after two days, in ms, unless a worker moves them into the database.
KEPT_MS = 2 * 24 * 3600 * 1000
#: Maximum length of an outcome's name, and of a task's path.
MOST_NAME, MOST_TASK = 64, 255
#: Maximum keys of one `Counts` with counts of their own; further ones are counted as the task ''.
MOST_TASKS = 2_000

#: ("points" or "jobs", queue, path of the task).
Key = tuple[str, str, str]
#: Counts of one key: by outcome, by wait and duration (`latency:<bound>`, `ran:<bound>`), and the sums of these in µs.
Tally = dict[str, int]

#: Names of the buckets of waits and durations. They contain the bounds, so that other bounds may be added later.
LATENCY, RAN = (tuple(f"{what}:{bound}" for bound in (*BOUNDS_MS, "more")) for what in ("latency", "ran"))
LATENCY_SUM, RAN_SUM = "latency:us", "ran:us"
#: An outcome that the database refused: it is not recorded, and its point or job comes due again.
DISCARDED = "discarded"
#: Counted in addition to the outcome: skipped points that were too late, although this worker could work when they
#: came due.
MISSED = "latency:missed"
TOO_LATE = ("missed", "max_catch_up", "catch_up_window")
_BOUNDS = tuple(bound / 1000 for bound in BOUNDS_MS)


class Counts(dict[Key, Tally]):
    """Tallies by key, at most MOST_TASKS and one more per kind and queue. Not thread-safe."""

    #: Before this instant the worker could not work. See `monitoring/minutes.py`, Note [Overload misses points].
    since: datetime = datetime.min.replace(tzinfo=UTC)
    #: By queue or task name: when this worker last knew it as paused.
    paused_at: Mapping[str, datetime] = {}

    def get_able_since(self, queue: str, task: str) -> datetime:
        """Return the instant since which the worker could execute this task of this queue."""
        return max(self.since, *(self.paused_at.get(name, self.since) for name in (queue, task)))

    def add(
        self, key: Key, outcome: str, count: int = 1, *, latency: float | None = None, ran: float | None = None
    ) -> None:
        """Count an outcome; `latency` and `ran` are in seconds, None if it has none."""
        tally = self.get(key)
        if tally is None:
            tally = self.setdefault(key if len(self) < MOST_TASKS else (*key[:2], ""), {})
        tally[outcome] = tally.get(outcome, 0) + count
        for seconds, buckets, total in ((latency, LATENCY, LATENCY_SUM), (ran, RAN, RAN_SUM)):
            if seconds is not None:
                bucket = buckets[bisect_left(_BOUNDS, seconds)]
                tally[bucket] = tally.get(bucket, 0) + 1
                tally[total] = tally.get(total, 0) + int(seconds * 1e6)

    def merge(self, others: Iterable[tuple[Key, Mapping[str, int]]]) -> None:
        for key, more in others:
            for name, count in more.items():
                self.add(key, name, count)


def add_up(tally: Tally, more: Mapping[str, int]) -> None:
    for name, count in more.items():
        tally[name] = tally.get(name, 0) + count


def sum_by_queue(counts: Counts) -> dict[tuple[str, str], Tally]:
    """Return the sums over all tasks, by (queue, kind)."""
    sums: dict[tuple[str, str], Tally] = {}
    for (kind, queue, _), tally in counts.items():
        add_up(sums.setdefault((queue, kind), {}), tally)
    return sums


def select_outcomes(tally: Mapping[str, int]) -> dict[str, int]:
    """Return the outcomes alone; those that were skipped are `skipped:<reason>`."""
    return {name: count for name, count in tally.items() if not name.startswith(("latency:", "ran:"))}


def compute_percentile(tally: Mapping[str, int], buckets: tuple[str, ...], share: float) -> float | None:
    """Return the seconds within which this share waited (LATENCY) or ran (RAN), rounded up to a bound; at most 3600."""
    wanted = share * sum(tally.get(name, 0) for name in buckets)
    if not wanted:
        return None
    for name, bound in zip(buckets, _BOUNDS, strict=False):
        wanted -= tally.get(name, 0)
        if wanted <= 0:
            return bound
    return _BOUNDS[-1]


def format_field(kind: str, name: str, task: str) -> str:
    return f"{kind} {name} {task}"


def decode(queue: str, fields: Mapping[str, str]) -> Counts:
    """Parse a hash, without garbage: every database can store the result."""
    counts = Counts()
    for field, value in fields.items():
        try:
            kind, name, task = field.split(" ", 2)
            count = int(value)
        except ValueError:
            continue
        sound = kind in ("points", "jobs") and _is_sound(name, MOST_NAME) and _is_sound(task, MOST_TASK)
        if sound and 0 < count < 2**53:
            counts.merge([((kind, queue, task), {name: count})])
    return counts


def _is_sound(value: str, most: int) -> bool:
    """Return whether a text from Redis is safe to store: PostgreSQL refuses NUL and surrogates."""
    return len(value) <= most and value.isprintable()


class MinuteCounts:
    """One hash for each queue and minute, in the queue's first shard. Minutes are numbered since the epoch."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def add(self, queue: str, minute: int, tallies: list[tuple[Key, Tally]]) -> None:
        """Add to a minute. After a `BrokerError` it may have been counted; a repetition may then count twice."""
        name, minutes = self._build_key(queue, minute), self._build_key(queue, "minutes")
        commands = [methodcaller("zadd", minutes, {minute: minute}), methodcaller("pexpire", minutes, KEPT_MS)]
        for (kind, _, task), tally in tallies:
            commands += [methodcaller("hincrby", name, format_field(kind, word, task), n) for word, n in tally.items()]
        try:
            self.broker.ask_all([*commands, methodcaller("pexpire", name, KEPT_MS)])
        except DamagedKeys:  # another program wrote them
            self.broker.ask("unlink", name, minutes)
            raise

    def list_minutes(self, queue: str, first: int, last: int) -> list[int]:
        """Return the minutes from `first` to `last` that have counts, oldest first."""
        try:
            found = self.broker.ask("zrangebyscore", self._build_key(queue, "minutes"), first, last)
        except DamagedKeys:
            return []  # the next `add` repairs it
        numbers = [parse_number(decode_text(each)) for each in found]
        return [minute for minute in numbers if minute is not None and first <= minute <= last]

    def read(self, queue: str, minute: int) -> Counts:
        try:
            found = self.broker.ask("hgetall", self._build_key(queue, minute))
        except DamagedKeys:
            return Counts()
        return decode(queue, {decode_text(field): decode_text(value) for field, value in found.items()})

    def forget(self, queue: str, minute: int) -> None:
        self.broker.ask("unlink", self._build_key(queue, minute))
        self.broker.ask("zrem", self._build_key(queue, "minutes"), minute)

    def _build_key(self, queue: str, what: str | int) -> str:
        return keys.build_counts_key(self.broker.config.prefix, Shard(queue, 0), what)
