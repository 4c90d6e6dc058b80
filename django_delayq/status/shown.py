"""What was seen, as a few plain lines; the JSON has the rest. Decides nothing."""

from collections.abc import Iterator, Sequence

from ..mirror import Drift
from .judge import find_remarks, format_span
from .snapshot import MOST_COUNTED, DatabaseView, Named, Problem, QueueView, RedisView, Snapshot

NOT_COUNTED = "not counted in time"
NOT_KNOWN = "not known"


def as_lines(snapshot: Snapshot, problems: Sequence[Problem]) -> list[str]:
    """Return how it stands, and below what is wrong."""
    lines = [f"{head:<10} {text}" for head, text in _facts(snapshot)]
    if problems:
        return [*lines, *(f"{'Problem':<10} {problem.code}: {problem.message}" for problem in problems)]
    failing = snapshot.database and snapshot.database.failing
    remarks = find_remarks(snapshot.redis, snapshot.held_back or (), failing.count if failing else 0)
    return [*lines, *([words for _tone, words in remarks] or ["All is well."])]


def _facts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    redis, compared, database = snapshot.redis, snapshot.comparison, snapshot.database
    yield "Redis", NOT_KNOWN if redis is None else _servers(redis)
    yield "Database", f"{database.alias} ({database.vendor})" if database is not None else NOT_KNOWN
    yield "Drift", _drift(compared.drift) if compared is not None and compared.drift is not None else NOT_KNOWN
    if redis is not None:
        live = sum(worker.live for worker in redis.workers)
        yield "Workers", f"{live} live, {len(redis.workers) - live} silent"
        for queue in redis.queues:
            yield "Queue", _queue(queue)
    for row in snapshot.held_back or ():
        yield "Held back", f"{row}: {row.standing}"
    if database is not None:
        yield from _counts(database)


def _servers(redis: RedisView) -> str:
    told = [f"{server.name} {server.version}".strip() for server in redis.servers or ()]
    return ", ".join(filter(None, told)) or "does not tell about itself"


def _drift(drift: Drift) -> str:
    return f"at least {drift.total}" if drift.capped else str(drift.total)


def _queue(queue: QueueView) -> str:
    late = f", the oldest {format_span(queue.oldest_due)} late" if queue.oldest_due else ""
    counts = f"{queue.members} entries ({queue.jobs} jobs), {queue.due} due ({queue.jobs_due} jobs)"
    return f"{queue.queue}: {counts}, {queue.leased} leased{late}"


def _counts(database: DatabaseView) -> Iterator[tuple[str, str]]:
    yield "Parked", _named(database.parked)
    yield "Failing", _named(database.failing)
    if database.refused is not None and database.refused.count:
        yield "Refused", _named(database.refused)
    runs = database.open_runs
    counts = NOT_COUNTED if runs is None else ", ".join(f"{name} {_number(count)}" for name, count in runs.items())
    failed = f", failed jobs {database.failed_jobs}" if database.failed_jobs else ""
    yield "Open runs", counts + failed


def _named(found: Named | None) -> str:
    if found is None:
        return NOT_COUNTED
    return f"{_number(found.count)} ({found.listed})" if found.count else "0"


def _number(count: int) -> str:
    return f"more than {MOST_COUNTED:,}" if count > MOST_COUNTED else str(count)
