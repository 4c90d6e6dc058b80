"""Formats a snapshot: as lines of text for users, and as JSON for programs. Judges nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ...index.counters import LAG, Counts, by_queue, outcomes, percentile
from ...models import Control
from .judge import exit_status, find_remarks, format_span
from .snapshot import MOST_COUNTED, Named, Problem, QueueView, Snapshot

NOT_COUNTED = "not counted in time"
PRUNED = ("at", "rows", "left", "behind_seconds", "finished")


def as_lines(snapshot: Snapshot, problems: Sequence[Problem]) -> list[str]:
    """Return the problems, each with a suggested fix, followed by the known state."""
    redis, compared, database = snapshot.redis, snapshot.comparison, snapshot.database
    failing = database and database.failing
    remarks = find_remarks(redis, snapshot.held_back or (), failing.count if failing else 0)
    lines = [f"Problem {each.code}: {each.message}" for each in problems]
    lines = lines or [words for _tone, words in remarks] or ["All is well."]
    if redis is not None:
        servers = [f"{each.name} {each.version}".strip() for each in redis.servers or ()]
        live = sum(worker.live for worker in redis.workers)
        lines.append(f"Redis: {', '.join(filter(None, servers)) or 'does not tell about itself'}")
        lines.append(f"Workers: {live} live, {len(redis.workers) - live} silent")
        lines += map(_queue, redis.queues)
    if compared is not None and compared.drift is not None:
        lines.append(f"Drift: {'at least ' if compared.drift.capped else ''}{compared.drift.total}")
    lines += [f"Held back: {row}: {row.standing}" for row in snapshot.held_back or ()]
    if database is not None:
        runs = database.open_runs
        counts = NOT_COUNTED if runs is None else ", ".join(f"{name} {_number(count)}" for name, count in runs.items())
        lines.append(f"Database: {database.alias} ({database.vendor})")
        for name in ("parked", "failing", "refused"):
            lines.append(f"{name.capitalize()}: {_named(getattr(database, name))}")
        lines.append(f"Open runs: {counts}, failed jobs {_number(database.failed_jobs)}")
    return lines


def _queue(queue: QueueView) -> str:
    late = f", the oldest {format_span(queue.oldest_due)} late" if queue.oldest_due else ""
    counts = f"{queue.members} entries ({queue.jobs} jobs), {queue.due} due ({queue.jobs_due} jobs)"
    return f"Queue {queue.queue}: {counts}, {queue.leased} leased{late}"


def _named(found: Named | None) -> str:
    if found is None:
        return NOT_COUNTED
    return _number(found.count) + (f" ({found.listed})" if found.count else "")


def _number(count: int | None) -> str:
    return NOT_COUNTED if count is None else f"more than {MOST_COUNTED:,}" if count > MOST_COUNTED else str(count)


def as_dict(snapshot: Snapshot, problems: Sequence[Problem]) -> dict[str, Any]:
    """Return the snapshot as a dict for `DjangoJSONEncoder`; None where a value is not known.

    The keys are a public interface: keys may be added, but not renamed. A count of one above its maximum means "more
    than the maximum".
    """
    redis, compared, database, load = snapshot.redis, snapshot.comparison, snapshot.database, snapshot.load
    drift, pruned = (compared.drift, compared.pruned) if compared is not None else (None, None)
    return {
        "status": exit_status(problems),
        "problems": list(map(asdict, problems)),
        "prefix": snapshot.prefix,
        "layout": compared and compared.layout,
        "redis": redis and redis.servers and list(map(asdict, redis.servers)),
        "workers": redis and [{**asdict(worker), "live": worker.live} for worker in redis.workers],
        "shards": redis and list(map(asdict, redis.shards)),
        "drift": drift and {**asdict(drift), "total": drift.total},
        "stale_edits": compared and compared.stale_edits,
        "database": database and asdict(database),
        "unknown_tasks": snapshot.unknown_tasks and asdict(snapshot.unknown_tasks),
        "late": snapshot.late and asdict(snapshot.late),
        "load": load and load._asdict(),
        "last_hour": None if snapshot.last_hour is None else list(_last_hour(snapshot.last_hour)),
        "held_back": None if snapshot.held_back is None else list(map(_held_back, snapshot.held_back)),
        "unnamed": compared and [each._asdict() for each in compared.unnamed],
        "pruned": pruned and {name: getattr(pruned, name) for name in PRUNED},
    }


def _last_hour(counts: Counts) -> Iterator[dict[str, Any]]:
    """Yield the counts of each queue and kind; waits are in seconds."""
    for (queue, kind), tally in sorted(by_queue(counts).items()):
        lag = {f"p{share}": percentile(tally, LAG, share / 100) for share in (50, 95, 99)}
        yield {"queue": queue, "kind": kind, "outcomes": outcomes(tally), "lag": lag}


def _held_back(row: Control) -> dict[str, Any]:
    return {
        "kind": row.kind, "name": row.name, "paused": row.is_paused(), "most": row.most, "reason": row.reason,
        "until": row.until, "by": row.changed_by, "since": row.changed_at,
    }  # fmt: skip
