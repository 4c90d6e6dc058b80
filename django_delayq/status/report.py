"""What was seen as one JSON object, for machines. Its keys are part of the public interface: they are added to, never
renamed. A value is null where it is not known.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..ledger import Load
from ..mirror import Drift
from .judge import exit_status
from .snapshot import Named, Problem, Snapshot, WorkerView


def as_dict(snapshot: Snapshot, problems: Sequence[Problem]) -> dict[str, Any]:
    """Return plain JSON values."""
    compared, redis, database = snapshot.comparison, snapshot.redis, snapshot.database
    drift = compared.drift if compared is not None else None
    return {
        "status": exit_status(problems),
        "problems": [{"code": item.code, "message": item.message, "queue": item.queue or None} for item in problems],
        "prefix": snapshot.prefix,
        "layout": compared.layout if compared is not None else None,
        "redis": None if redis is None or redis.servers is None else [asdict(server) for server in redis.servers],
        "workers": None if redis is None else [_worker(worker) for worker in redis.workers],
        "shards": None if redis is None else [asdict(shard) for shard in redis.shards],
        "jobs": None if redis is None else [asdict(jobs) for jobs in redis.jobs],
        "drift": None if drift is None else _drift(drift),
        "stale_edits": compared.stale_edits if compared is not None else None,
        "reshard": None
        if compared is None or compared.foreign
        else {"queues": list(compared.moving), "under_way": compared.under_way},
        "database": None if database is None else {"alias": database.alias, "vendor": database.vendor},
        "schedules": None
        if database is None
        else {
            "parked": _named(database.parked),
            "failing": _named(database.failing),
            "refused": _named(database.refused),
        },
        "load": None if snapshot.load is None else _load(snapshot.load),
        "open_runs": None if database is None else database.open_runs,
        "dead_durable_jobs": None if database is None else database.dead_jobs,
    }


def _worker(worker: WorkerView) -> dict[str, Any]:
    return {**asdict(worker), "live": worker.live}


def _load(load: Load) -> dict[str, Any]:
    found = load._asdict()
    del found["enough"]
    return found


def _drift(drift: Drift) -> dict[str, Any]:
    swept_at = None if drift.swept_at is None else drift.swept_at.isoformat()
    return {"total": drift.total, **asdict(drift), "swept_at": swept_at}


def _named(found: Named | None) -> dict[str, Any] | None:
    return None if found is None else {"count": found.count, "names": list(found.names)}
