"""What was seen, for a terminal as aligned lines. Decides nothing."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from ..counters import Counts
from ..minutes import Load
from ..mirror import Drift
from ..pruning import LastPass
from .as_json import last_hour
from .judge import find_remarks
from .snapshot import (
    MOST_COUNTED,
    SUMMED,
    Comparison,
    DatabaseView,
    Named,
    Problem,
    ServerView,
    ShardView,
    Snapshot,
    WorkerView,
)

#: So many shards and silent workers are listed; the JSON has all of them.
MOST_ROWS = 16
GOOD, BAD, PLAIN = "good", "bad", ""
NOT_COUNTED = "not counted in time"
LAYOUTS = {"ours": "ours", "none": "nobody's yet", "foreign": "another's"}

#: The tone that it may be coloured in, and the text.
Line = tuple[str, str]


def _number(count: int) -> str:
    return f"more than {MOST_COUNTED:,}" if count > MOST_COUNTED else str(count)


def as_lines(snapshot: Snapshot, problems: Sequence[Problem]) -> list[Line]:
    """Return (tone, line) pairs: how it stands, and below what is wrong."""
    lines = [(PLAIN, f"{head:<10} {text}") for head, text in _facts(snapshot)]
    if snapshot.redis is not None:
        lines += _table(["Workers", "queues", "heartbeat", "up", "running", "held"], _workers(snapshot.redis.workers))
        head = ["Shards", "members", "due", "leased", "jobs", "jobs due", "oldest due", "epoch"]
        lines += _table(head, _shards(snapshot.redis.shards))
    if snapshot.last_hour:
        lines += _table(["Last hour", "kind", "p50", "p95", "p99", "ended"], _counted(snapshot.last_hour))
        if snapshot.redis is None:
            lines.append((PLAIN, "The last minutes are not known: Redis does not answer."))
    lines.append((PLAIN, ""))
    if not problems:
        failing = snapshot.database and snapshot.database.failing
        found = find_remarks(snapshot.redis, snapshot.held_back or (), failing.count if failing else 0)
        remarks = [(BAD if tone == BAD else PLAIN, words) for tone, words in found]
        return [*lines, *(remarks or [(GOOD, "All is well.")])]
    lines.append((BAD, "1 problem:" if len(problems) == 1 else f"{len(problems)} problems:"))
    return [*lines, *((BAD, f"  {problem.code}: {problem.message}") for problem in problems)]


def _facts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    redis, compared, database, load = snapshot.redis, snapshot.comparison, snapshot.database, snapshot.load
    if redis is None:
        yield "Redis", "not known"
    else:
        for server in redis.servers or (ServerView(),):
            yield "Redis", _server(server)
    yield "Database", f"{database.alias} ({database.vendor})" if database is not None else "not known"
    yield "Prefix", f"{snapshot.prefix!r}, {LAYOUTS[compared.layout] if compared is not None else 'not known'}"
    for row in snapshot.held_back or ():
        yield "Held back", f"{row}: {row.standing}"
    yield from _compared(compared)
    if load is not None and load.executed + load.missed:
        yield "Load", _load(load)
    if compared is not None and compared.pruned is not None:
        yield "Pruned", _pruned(compared.pruned)
    if database is not None:
        yield from _counts(database)


def _compared(compared: Comparison | None) -> Iterator[tuple[str, str]]:
    if compared is None or compared.drift is None:
        yield "Drift", "not known"
    else:
        yield "Drift", _drift(compared.drift)
        yield "Swept", _swept(compared.drift)


def _counts(database: DatabaseView) -> Iterator[tuple[str, str]]:
    yield "Parked", _named(database.parked)
    yield "Failing", _named(database.failing)
    if database.refused is not None and database.refused.count:
        yield "Refused", _named(database.refused)
    runs = database.open_runs
    yield (
        "Open runs",
        NOT_COUNTED if runs is None else ", ".join(f"{name} {_number(count)}" for name, count in runs.items()),
    )
    if database.failed_jobs:
        yield "Failed jobs", str(database.failed_jobs)


def _server(server: ServerView) -> str:
    parts = [f"{server.name} {server.version}".strip() or "does not tell about itself", server.memory_policy]
    if server.used_bytes is not None:
        most = f" of {_mib(server.max_bytes)}" if server.max_bytes is not None else ""
        parts.append(f"{_mib(server.used_bytes)}{most} used")
    if server.appendonly is not None:
        parts.append(f"append-only file {'on' if server.appendonly else 'off'}")
    return ", ".join(part for part in parts if part)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _load(load: Load) -> str:
    missed = f", {load.missed} missed" if load.missed else ""
    return f"{load.executed} executed in {load.seconds:.0f} s{missed}, waits of up to {load.longest_wait:g} s"


def _drift(drift: Drift) -> str:
    parts = {
        "edits not mirrored": drift.unmirrored, "deletions not mirrored": drift.tombstones, "missing": drift.missing,
        "left over": drift.ghosts, "torn": drift.torn, "shards not built": drift.unbuilt,
    }  # fmt: skip
    shown = ", ".join(f"{name} {count}" for name, count in parts.items() if count)
    text = f"{drift.total} ({shown})" if shown else "0"
    return f"at least {text}; there is too much to count what is missing or left over" if drift.capped else text


def _swept(drift: Drift) -> str:
    if drift.swept_at is None:
        return "not known"
    text = f"{drift.swept_at:%Y-%m-%d %H:%M:%S} UTC in {_span(drift.swept_seconds or 0.0)}, {drift.mended:,} mended"
    late = drift.sweep_overdue_seconds or 0.0
    return f"{text}; the next one has been due for {_span(late)}" if late else text


def _pruned(last: LastPass) -> str:
    parts = [f"{last.rows:,} runs in {_span(last.seconds)}, {last.at:%Y-%m-%d %H:%M:%S} UTC"]
    if last.behind_seconds:
        parts.append(f"the oldest {_span(last.behind_seconds)} late")
    if last.left:
        parts.append(f"{last.left:,} left, as others had locked them")
    return ", ".join(parts if last.finished else [*parts, "more to do"])


def _named(found: Named | None) -> str:
    if found is None:
        return NOT_COUNTED
    return f"{_number(found.count)} ({found.listed})" if found.count else "0"


def _table(head: list[str], rows: Iterator[list[str]]) -> Iterator[Line]:
    """Yield a table under its title, the first word of the head. A last row may be shorter."""
    table = [head, *rows]
    yield PLAIN, ""
    if len(table) == 1:
        yield PLAIN, f"{head[0]}: none"
        return
    widths = [max(len(row[at]) for row in table if at < len(row)) for at in range(len(head))]
    for row in table:
        cells = [
            cell.ljust(width) if name in (head[0], "queues", "epoch", "ended") else cell.rjust(width)
            for name, cell, width in zip(head, row, widths, strict=False)
        ]
        yield PLAIN, "  ".join(cells).rstrip()


def _workers(workers: Sequence[WorkerView]) -> Iterator[list[str]]:
    silent = [worker for worker in workers if not worker.live]
    for worker in [*(worker for worker in workers if worker.live), *silent[:MOST_ROWS]]:
        beat = f"{_span(worker.heartbeat_age)} ago{'' if worker.live else ', silent'}"
        up = "-" if worker.uptime is None else _span(worker.uptime)
        counts = ["-" if count is None else str(count) for count in (worker.running, worker.held)]
        yield [worker.name, ",".join(worker.queues) or "?", beat, up, *counts]
    if len(silent) > MOST_ROWS:
        yield [f"… and {len(silent) - MOST_ROWS} more that are silent"]


def _shards(shards: Sequence[ShardView]) -> Iterator[list[str]]:
    shown = shards if len(shards) <= MOST_ROWS else sorted(shards, key=_worst_first)[:MOST_ROWS]
    for shard in shown:
        oldest = "-" if shard.oldest_due is None else f"{_span(shard.oldest_due)} late"
        counts = [str(getattr(shard, name)) for name in SUMMED]
        yield [f"{shard.queue}:{shard.shard}", *counts, oldest, shard.epoch]
    rest = [shard for shard in shards if shard not in shown]
    if rest:
        sums = [sum(getattr(shard, name) for shard in rest) for name in SUMMED]
        yield [f"… and {len(rest)} more", *map(str, sums)]


def _worst_first(shard: ShardView) -> tuple[bool, bool, float, str, int]:
    return (shard.epoch != "absent", shard.epoch != "building", -(shard.oldest_due or 0.0), shard.queue, shard.shard)


def _counted(counts: Counts) -> Iterator[list[str]]:
    for each in last_hour(counts):
        waits = ["-" if wait is None else _span(wait) for wait in each["lag"].values()]
        ended = ", ".join(f"{name} {number}" for name, number in sorted(each["outcomes"].items()))
        yield [each["queue"], each["kind"], *waits, ended]


def _span(seconds: float) -> str:
    """Return "12 ms", "4.2 s" or "1:05:00"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
