"""What was seen as aligned lines for a terminal, each with the tone it may be coloured in. Decides nothing."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from ..ledger import Load
from .snapshot import DatabaseView, JobsView, Named, Problem, ServerView, ShardView, Snapshot, WorkerView

#: So many shards and silent workers are listed; the JSON has all of them.
MOST_ROWS = 16
GOOD, BAD, PLAIN = "good", "bad", ""

Line = tuple[str, str]


def as_lines(snapshot: Snapshot, problems: Sequence[Problem]) -> list[Line]:
    """Return (tone, line) pairs: how it stands, and below what is wrong."""
    lines = [(PLAIN, f"{head:<10} {text}") for head, text in _facts(snapshot)]
    if snapshot.redis is not None:
        lines += _section("Workers", _workers(snapshot.redis.workers))
        lines += _section("Shards", _shards(snapshot.redis.shards))
        lines += _section("Jobs", _jobs(snapshot.redis.jobs))
    lines.append((PLAIN, ""))
    if not problems:
        return [*lines, (GOOD, "All is well.")]
    lines.append((BAD, "1 problem:" if len(problems) == 1 else f"{len(problems)} problems:"))
    return [*lines, *((BAD, f"  {problem.code}: {problem.message}") for problem in problems)]


def _facts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    redis, compared = snapshot.redis, snapshot.comparison
    for server in (redis.servers or (ServerView(),)) if redis is not None else ():
        yield "Redis", _server(server)
    if redis is None:
        yield "Redis", "not known"
    database = snapshot.database
    yield "Database", f"{database.alias} ({database.vendor})" if database is not None else "not known"
    layouts = {"ours": "ours", "none": "nobody's yet", "foreign": "another's"}
    layout = layouts[compared.layout] if compared is not None else "not known"
    yield "Prefix", f"{snapshot.prefix!r}, {layout}"
    if compared is not None and compared.moving:
        yield "Reshard", f"{', '.join(compared.moving)}: {'under way' if compared.under_way else 'interrupted'}"
    yield "Drift", _drift(snapshot)
    if snapshot.load is not None and snapshot.load.executed + snapshot.load.missed:
        yield "Load", _load(snapshot.load)
    if database is not None:
        yield "Parked", _named(database.parked)
        yield "Failing", _named(database.failing)
        if database.refused is not None and database.refused.count:
            yield "Refused", _named(database.refused)
        yield "Open runs", _open_runs(database)
        if database.dead_jobs:
            yield "Dead jobs", f"{database.dead_jobs} in the database; those in Redis are below"


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
    return f"{load.executed} executed in {load.seconds:.0f} s{missed}, longest wait {load.longest_wait:.1f} s"


def _drift(snapshot: Snapshot) -> str:
    drift = snapshot.comparison.drift if snapshot.comparison is not None else None
    if drift is None:
        return "not known"
    parts = {
        "edits not mirrored": drift.unmirrored, "deletions not mirrored": drift.tombstones, "missing": drift.missing,
        "left over": drift.ghosts, "torn": drift.torn, "shards not built": drift.unbuilt,
        "jobs not mirrored": drift.jobs, "jobs missing": drift.missing_jobs,
    }  # fmt: skip
    told = ", ".join(f"{name} {count}" for name, count in parts.items() if count)
    return f"{drift.total} ({told})" if told else "0"


def _named(found: Named | None) -> str:
    if found is None:
        return "not counted in time"
    more = ", …" if found.count > len(found.names) else ""
    return f"{found.count} ({', '.join(found.names)}{more})" if found.count else "0"


def _open_runs(database: DatabaseView) -> str:
    if database.open_runs is None:
        return "not counted in time"
    return ", ".join(f"{status} {count}" for status, count in database.open_runs.items())


def _section(title: str, rows: list[list[str]]) -> Iterator[Line]:
    """Yield a table under its title; the first row is its head. A last row may be shorter."""
    yield PLAIN, ""
    if len(rows) == 1:
        yield PLAIN, f"{title}: none"
        return
    rows[0][0] = title
    columns = range(len(rows[0]))
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in columns]
    left = [at == 0 or rows[0][at] in ("queues", "epoch") for at in columns]
    for row in rows:
        cells = [cell.ljust(widths[at]) if left[at] else cell.rjust(widths[at]) for at, cell in enumerate(row)]
        yield PLAIN, "  ".join(cells).rstrip()


def _workers(workers: Sequence[WorkerView]) -> list[list[str]]:
    rows = [["", "queues", "heartbeat", "up", "running", "held"]]
    live = [worker for worker in workers if worker.live]
    silent = [worker for worker in workers if not worker.live]
    for worker in [*live, *silent[:MOST_ROWS]]:
        beat = f"{_span(worker.heartbeat_age)} ago"
        rows.append(
            [
                worker.name,
                ",".join(worker.queues) or "?",
                beat if worker.live else f"{beat}, silent",
                "-" if worker.uptime is None else _span(worker.uptime),
                "-" if worker.running is None else str(worker.running),
                "-" if worker.held is None else str(worker.held),
            ]
        )
    if len(silent) > MOST_ROWS:
        rows.append([f"… and {len(silent) - MOST_ROWS} more that are silent"])
    return rows


def _shards(shards: Sequence[ShardView]) -> list[list[str]]:
    rows = [["", "members", "due", "leased", "oldest due", "epoch"]]
    shown = shards if len(shards) <= MOST_ROWS else sorted(shards, key=_worst_first)[:MOST_ROWS]
    for shard in shown:
        oldest = "-" if shard.oldest_due is None else f"{_span(shard.oldest_due)} late"
        counts = [str(shard.members), str(shard.due), str(shard.leased)]
        rows.append([f"{shard.queue}:{shard.shard}", *counts, oldest, shard.epoch])
    if len(shards) > len(shown):
        rest = [shard for shard in shards if shard not in shown]
        sums = [sum(getattr(shard, name) for shard in rest) for name in ("members", "due", "leased")]
        rows.append([f"… and {len(rest)} more", *map(str, sums)])
    return rows


def _jobs(queues: Sequence[JobsView]) -> list[list[str]]:
    rows = [["", "waiting", "ready", "running", "dead", "oldest ready"]]
    for jobs in queues:
        counts = (jobs.waiting, jobs.ready, jobs.running, jobs.dead)
        if any(counts):
            oldest = "-" if jobs.oldest_ready is None else f"{_span(jobs.oldest_ready)} ago"
            rows.append([jobs.queue, *map(str, counts), oldest])
    return rows


def _worst_first(shard: ShardView) -> tuple[bool, bool, float, str, int]:
    return (shard.epoch != "absent", shard.epoch != "building", -(shard.oldest_due or 0.0), shard.queue, shard.shard)


def _span(seconds: float) -> str:
    """Return "12 ms", "4.2 s" or "1:05:00"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
