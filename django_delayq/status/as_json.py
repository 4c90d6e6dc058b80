"""What was seen, for machines as one JSON object. Decides nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..counters import LAG, Counts, by_queue, outcomes, percentile
from ..mirror import Drift
from ..models import Control
from ..pruning import LastPass
from .judge import exit_status
from .snapshot import MOST_COUNTED, MOST_UNKNOWN, Comparison, DatabaseView, Problem, Snapshot

KEYS = (
    "status", "problems", "prefix", "layout", "redis", "workers", "shards", "drift", "stale_edits",
    "database", "schedules", "load", "last_hour", "open_runs", "failed_jobs", "capped",
    "pruned", "held_back", "unknown_tasks", "late", "unnamed",
)  # fmt: skip


def as_dict(snapshot: Snapshot, problems: Sequence[Problem]) -> dict[str, Any]:
    """Return plain JSON values, null where something is not known.

    The keys are part of the public interface: they are added to, never renamed.
    """
    redis, database, compared = snapshot.redis, snapshot.database, snapshot.comparison
    values: dict[str, Any] = dict.fromkeys(KEYS)
    values["status"], values["prefix"] = exit_status(problems), snapshot.prefix
    values["problems"] = [
        {"code": item.code, "message": item.message, "queue": item.queue or None} for item in problems
    ]
    if redis is not None:
        values["redis"] = None if redis.servers is None else list(map(asdict, redis.servers))
        values["workers"] = [{**asdict(worker), "live": worker.live} for worker in redis.workers]
        values["shards"] = list(map(asdict, redis.shards))
    if compared is not None:
        values |= _compared_values(compared)
    if database is not None:
        values |= _database_values(database)
    if snapshot.held_back is not None:
        values["held_back"] = list(map(_held_back_values, snapshot.held_back))
    for name, found in (("unknown_tasks", snapshot.unknown_tasks), ("late", snapshot.late)):
        values[name] = found and {"count": min(found.count, MOST_UNKNOWN), "names": list(found.names)}
    values["capped"] = list(_capped(snapshot))
    if snapshot.load is not None:
        values["load"] = snapshot.load._asdict()
        del values["load"]["goes_on"]
    if snapshot.last_hour is not None:
        values["last_hour"] = list(last_hour(snapshot.last_hour))
    return values


def _compared_values(compared: Comparison) -> dict[str, Any]:
    values: dict[str, Any] = {
        "layout": compared.layout,
        "stale_edits": _least(compared.stale_edits),
        "drift": compared.drift and _drift_values(compared.drift),
    }
    if not compared.foreign:
        values["unnamed"] = [each._asdict() for each in compared.unnamed]
        values["pruned"] = compared.pruned and _pruned_values(compared.pruned)
    return values


def _database_values(database: DatabaseView) -> dict[str, Any]:
    named = {"parked": database.parked, "failing": database.failing, "refused": database.refused}
    runs = database.open_runs
    return {
        "schedules": {name: found and {**asdict(found), "count": _least(found.count)} for name, found in named.items()},
        "database": {"alias": database.alias, "vendor": database.vendor},
        "open_runs": None if runs is None else {name: _least(count) for name, count in runs.items()},
        "failed_jobs": database.failed_jobs,
    }


def _least(count: int | None) -> int | None:
    return None if count is None else min(count, MOST_COUNTED)


def _capped(snapshot: Snapshot) -> Iterator[str]:
    """Yield the numbers of the JSON that are the least there is, as counting stopped there."""
    compared, database, counts = snapshot.comparison, snapshot.database, dict[str, int | None]()
    if compared is not None:
        counts["stale_edits"] = compared.stale_edits
        if compared.drift is not None and compared.drift.capped:
            yield "drift"
    if snapshot.unknown_tasks is not None and snapshot.unknown_tasks.count > MOST_UNKNOWN:
        yield "unknown_tasks"
    if snapshot.late is not None and snapshot.late.count > MOST_UNKNOWN:
        yield "late"
    if database is not None:
        counts |= {f"open_runs.{name}": count for name, count in (database.open_runs or {}).items()}
        for name in ("parked", "failing", "refused"):
            counts[f"schedules.{name}"] = getattr(getattr(database, name), "count", None)
    for name, count in counts.items():
        if (count or 0) > MOST_COUNTED:
            yield name


def last_hour(counts: Counts) -> Iterator[dict[str, Any]]:
    """Yield what was counted of each queue and kind; waits in seconds."""
    for (queue, kind), tally in sorted(by_queue(counts).items()):
        lag = {f"p{share:.0f}": percentile(tally, LAG, share / 100) for share in (50, 95, 99)}
        yield {"queue": queue, "kind": kind, "outcomes": outcomes(tally), "lag": lag}


def _drift_values(drift: Drift) -> dict[str, Any]:
    swept_at = None if drift.swept_at is None else drift.swept_at.isoformat()
    return {"total": drift.total, **asdict(drift), "swept_at": swept_at}


def _pruned_values(last: LastPass) -> dict[str, Any]:
    values = {name: getattr(last, name) for name in ("rows", "left", "seconds", "behind_seconds", "finished")}
    return {"at": last.at.isoformat(), **values}


def _held_back_values(row: Control) -> dict[str, Any]:
    return {
        "kind": row.kind, "name": row.name, "paused": row.is_paused(), "most": row.most, "reason": row.reason,
        "until": row.until and row.until.isoformat(), "by": row.changed_by, "since": row.changed_at.isoformat(),
    }  # fmt: skip
