"""Sums of what became of due points and jobs: outcomes, and histograms of waits and durations. Pure values.

Note [Counters]
Each worker adds up in memory (`worker/`), and once a second adds that to the minute's hash in Redis
(`worker/recorder.py`, `index/counts.py`). Two minutes later a worker moves the hash into the table `Rollup`
(`minutes.py`). So how much was done of late is read from a few hundred sums, and nobody scans the ledger for it.

The ledger is the truth, these are not. A worker that crashes loses what it has counted in its last second, and a lost
reply of Redis may count a second twice. What Redis
loses before it is moved is lost.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

#: The buckets of all histograms, each by its upper bound; one more is for what is longer.
BOUNDS_MS = (
    1, 2, 4, 8, 15, 30, 60, 125, 250, 500,
    1_000, 2_000, 4_000, 8_000, 15_000, 30_000, 60_000,
    120_000, 240_000, 480_000, 900_000, 1_800_000, 3_600_000,
)  # fmt: skip
#: So many tasks are told apart within a minute and a queue; further ones are counted as the task ''.
MOST_TASKS = 2_000

#: "points" or "jobs", the queue, the path of the task.
Key = tuple[str, str, str]
#: Of one key: an outcome -> how often; `lag:<bound>`, `ran:<bound>` -> how many waited, ran for so long at most;
#: `lag:us`, `ran:us` -> for how many µs together.
Tally = dict[str, int]

#: What a histogram's buckets are called: with their bounds, so that other bounds can stand beside them one day.
LAG, RAN = (tuple(f"{what}:{bound}" for bound in (*BOUNDS_MS, "more")) for what in ("lag", "ran"))
#: And what their sums are called.
LAG_SUM, RAN_SUM = "lag:us", "ran:us"
#: What became of an outcome that the database refused: it is not recorded, and its point or job comes due again.
DISCARDED = "discarded"
#: Beside the outcome: due points that were skipped as too late, although they fell due while this worker could work.
MISSED = "lag:missed"
#: The reasons of such skipping.
TOO_LATE = ("missed", "max_catch_up", "catch_up_window")
_BOUNDS = tuple(bound / 1000 for bound in BOUNDS_MS)


class Counts(dict[Key, Tally]):
    """Tallies by their keys, MOST_TASKS of them at most and one more for each kind and queue. Used by one thread."""

    #: Before this instant the counting worker could do nothing: it had not begun, or a server was away. See
    #: `minutes.py`, Note [Overload].
    since: datetime = datetime.min.replace(tzinfo=UTC)
    #: The instant at which this worker last knew a queue or a task as paused, by its name.
    paused_at: Mapping[str, datetime] = {}

    def able_since(self, queue: str, task: str) -> datetime:
        """Return the instant from which on the counting worker could execute this task of this queue."""
        return max(self.since, *(self.paused_at.get(name, self.since) for name in (queue, task)))

    def add(
        self, key: Key, outcome: str, number: int = 1, *, lag: float | None = None, ran: float | None = None
    ) -> None:
        """Count an outcome; `lag` and `ran` are in seconds, None where it has none."""
        tally = self.get(key)
        if tally is None:
            tally = self.setdefault(key if len(self) < MOST_TASKS else (*key[:2], ""), {})
        tally[outcome] = tally.get(outcome, 0) + number
        if lag is not None:
            bucket = LAG[bisect_left(_BOUNDS, lag)]
            tally[bucket] = tally.get(bucket, 0) + 1
            tally[LAG_SUM] = tally.get(LAG_SUM, 0) + int(lag * 1e6)
        if ran is not None:
            bucket = RAN[bisect_left(_BOUNDS, ran)]
            tally[bucket] = tally.get(bucket, 0) + 1
            tally[RAN_SUM] = tally.get(RAN_SUM, 0) + int(ran * 1e6)

    def merge(self, others: Iterable[tuple[Key, Mapping[str, int]]]) -> None:
        """Add what others have counted."""
        for key, more in others:
            for name, number in more.items():
                self.add(key, name, number)


def add_up(tally: Tally, more: Mapping[str, int]) -> None:
    """Add one tally to another."""
    for name, number in more.items():
        tally[name] = tally.get(name, 0) + number


def by_queue(counts: Counts) -> dict[tuple[str, str], Tally]:
    """Return the sums over all tasks, by queue and kind."""
    sums: dict[tuple[str, str], Tally] = {}
    for (kind, queue, _), tally in counts.items():
        add_up(sums.setdefault((queue, kind), {}), tally)
    return sums


def outcomes(tally: Mapping[str, int]) -> dict[str, int]:
    """Return the outcomes alone; those that were skipped are `skipped:<reason>`."""
    return {name: number for name, number in tally.items() if not name.startswith(("lag:", "ran:"))}


def percentile(tally: Mapping[str, int], buckets: tuple[str, ...], share: float) -> float | None:
    """Return for how many seconds this share of all waited (LAG) or ran (RAN) at most; None where there are none.

    It is the bound of a bucket, so up to twice as long as it was; what took longer than the last bound counts as that.
    """
    wanted = share * sum(tally.get(name, 0) for name in buckets)
    if not wanted:
        return None
    for name, bound in zip(buckets, _BOUNDS, strict=False):
        wanted -= tally.get(name, 0)
        if wanted <= 0:
            return bound
    return _BOUNDS[-1]


def field_of(kind: str, name: str, task: str) -> str:
    """Return the field of a number in the hash of its queue."""
    return f"{kind} {name} {task}"


def decode(queue: str, fields: Mapping[str, str]) -> Counts:
    """Return what a hash holds, without what is garbage there: what is returned any database can store."""
    counts = Counts()
    for field, text in fields.items():
        try:
            kind, name, task = field.split(" ", 2)
            number = int(text)
        except ValueError:
            continue
        sound = kind in ("points", "jobs") and _is_sound(name, MOST_NAME) and _is_sound(task, MOST_TASK)
        if sound and 0 < number < 2**53:
            counts.merge([((kind, queue, task), {name: number})])
    return counts


#: The longest name of an outcome, and path of a task.
MOST_NAME, MOST_TASK = 64, 255


def _is_sound(text: str, most: int) -> bool:
    """Say whether a text is none that somebody else wrote to do harm: PostgreSQL refuses NUL and halves of pairs."""
    return len(text) <= most and text.isprintable()
