"""What of that which was seen is wrong, in one line each that says what to do. Asks nobody anything.

Note [What counts as wrong]
Wrong is what keeps due points from being run in time, or Redis from agreeing with the database, and does not pass by
itself within seconds. A shard that is being rebuilt is not wrong, one that waits for it is. A task that fails, a
schedule that is parked or exhausted is a matter of that schedule: it is told, but does not alarm. In a prefix that
belongs to somebody else only that is wrong: its numbers are not ours.
"""

from collections.abc import Iterable, Iterator, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..ledger import Load
from .snapshot import Comparison, JobsView, Named, Problem, RedisView, ServerView, ShardView, Snapshot

MAX_LAG_SECONDS = 60.0
#: Where the next one waits for longer, the workers are busy.
WAITING_SECONDS = 1.0


def judge(snapshot: Snapshot, *, max_lag: float = MAX_LAG_SECONDS) -> list[Problem]:
    """Return what is wrong; see Note [What counts as wrong]. `max_lag` is in seconds."""
    problems = list(snapshot.blind)
    compared, redis = snapshot.comparison, snapshot.redis
    for server in (redis and redis.servers) or ():
        problems += _server(server)
    if compared is not None and compared.foreign:
        return [*problems, Problem("foreign_layout", compared.foreign)]
    if redis is not None:
        problems += _queues(redis, max_lag)
        problems += _overload(redis, snapshot.load)
    if compared is not None and redis is not None:
        problems += _differences(compared, redis)
    if snapshot.database is not None and snapshot.database.refused is not None:
        problems += _refused(snapshot.database.refused)
    return problems


def exit_status(problems: Iterable[Problem]) -> int:
    """Return 0 where all is well, else the gravest of WRONG and BLIND."""
    return max((problem.status for problem in problems), default=0)


def excess(compared: Comparison, redis: RedisView) -> int:
    """Return how many entries differ beyond what can be under way: between ledger and Redis an entry is leased."""
    drift = compared.drift
    if drift is None or drift.unbuilt:
        return 0
    return max(0, drift.missing + drift.ghosts + drift.torn - redis.leased) + drift.missing_jobs


def _server(server: ServerView) -> Iterator[Problem]:
    if server.evicts:
        yield Problem(
            "evicts",
            _(
                "Redis has maxmemory-policy %(policy)s and would evict schedules, so that no worker starts. Set it to "
                "noeviction, or use another server."
            )
            % {"policy": server.memory_policy},
        )
    if server.full:
        yield Problem("memory_full", _("The memory of Redis is full: nothing new gets in. Raise maxmemory."))
    if server.disk_problem:
        yield Problem(
            "disk",
            _("Redis cannot write to its disk (%(field)s) and may refuse all writes. Look at its log and its disk.")
            % {"field": server.disk_problem},
        )


def _queues(redis: RedisView, max_lag: float) -> Iterator[Problem]:
    queues: dict[str, list[ShardView]] = {}
    for shard in redis.shards:
        queues.setdefault(shard.queue, []).append(shard)
    served = {queue for worker in redis.workers if worker.live for queue in worker.queues}
    jobs = {found.queue: found for found in redis.jobs}
    for queue, shards in queues.items():
        yield from _unserved(queue, shards, served)
        if queue in jobs and queue not in served:
            yield from _unserved_jobs(jobs[queue], max_lag)
        yield from _unbuilt(queue, shards)
        yield from _overdue(queue, shards, max_lag)


def _unserved(queue: str, shards: Sequence[ShardView], served: set[str]) -> Iterator[Problem]:
    count = sum(shard.members for shard in shards)
    if count and queue not in served:
        text = ngettext(
            "No live worker serves queue %(queue)s, which holds %(count)d entry. Start one: manage.py delayq_worker",
            "No live worker serves queue %(queue)s, which holds %(count)d entries. Start one: manage.py delayq_worker",
            count,
        )
        yield Problem("no_worker", text % {"queue": queue, "count": count}, queue=queue)


def _unserved_jobs(jobs: JobsView, max_lag: float) -> Iterator[Problem]:
    """A queue of jobs that nobody serves is no problem while none of them could run: another host may be about to."""
    if jobs.oldest_ready is not None and jobs.oldest_ready > max_lag:
        text = ngettext(
            "No live worker serves queue %(queue)s, in which a job has been ready for %(seconds)d s; it has %(count)d "
            "job in all. Start one: manage.py delayq_worker",
            "No live worker serves queue %(queue)s, in which a job has been ready for %(seconds)d s; it has %(count)d "
            "jobs in all. Start one: manage.py delayq_worker",
            jobs.total,
        )
        values = {"queue": jobs.queue, "seconds": jobs.oldest_ready, "count": jobs.total}
        yield Problem("jobs_without_worker", text % values, queue=jobs.queue)


def _unbuilt(queue: str, shards: Sequence[ShardView]) -> Iterator[Problem]:
    absent = sum(shard.epoch == "absent" for shard in shards)
    if absent:
        text = ngettext(
            "%(count)d shard of queue %(queue)s is not built in Redis: it was flushed, or no worker has run yet. A "
            "worker builds it within seconds; if none runs, start one: manage.py delayq_worker",
            "%(count)d shards of queue %(queue)s are not built in Redis: it was flushed, or no worker has run yet. A "
            "worker builds them within seconds; if none runs, start one: manage.py delayq_worker",
            absent,
        )
        yield Problem("not_built", text % {"count": absent, "queue": queue}, queue=queue)


def _overdue(queue: str, shards: Sequence[ShardView], max_lag: float) -> Iterator[Problem]:
    oldest = max((shard.oldest_due or 0.0 for shard in shards), default=0.0)
    if oldest > max_lag:
        text = _(
            "In queue %(queue)s an entry has been due for %(seconds)d s, more than %(most)g s. If its workers are "
            "busy, start more of them or with more threads; else look at their log."
        )
        yield Problem("overdue", text % {"queue": queue, "seconds": oldest, "most": max_lag}, queue=queue)


def _overload(redis: RedisView, load: Load | None) -> Iterator[Problem]:
    """Points are missed, and others wait for a worker right now."""
    waiting = any((shard.oldest_due or 0.0) > WAITING_SECONDS for shard in redis.shards)
    if load is not None and load.overloaded and waiting:
        text = _(
            "More falls due than the workers can do: in %(seconds)d s %(missed)d due points were skipped because they "
            "came too late, and %(executed)d executed; the longest wait was %(wait)d s. Needed: %(needed).1f "
            "executions/s, done: %(done).1f. Start more workers or threads, or let schedules fall due less often."
        )
        values = {"seconds": load.seconds, "missed": load.missed, "executed": load.executed, "wait": load.longest_wait}
        yield Problem("overload", text % {**values, "needed": load.needed, "done": load.done})


def _differences(compared: Comparison, redis: RedisView) -> Iterator[Problem]:
    for queue in () if compared.under_way else compared.moving:
        text = _(
            "Queue %(queue)s was being moved to another number of shards, and that was interrupted. Run it again: "
            "manage.py delayq_sync --reshard"
        )
        yield Problem("unfinished_reshard", text % {"queue": queue}, queue=queue)
    if compared.stale_edits:
        text = ngettext(
            "%(count)d edit is not mirrored, although it is older than 30 s; a worker does that within seconds. Start "
            "one or look at its log, or run: manage.py delayq_sync",
            "%(count)d edits are not mirrored, although they are older than 30 s; a worker does that within seconds. "
            "Start one or look at its log, or run: manage.py delayq_sync",
            compared.stale_edits,
        )
        yield Problem("stale_edits", text % {"count": compared.stale_edits})
    jobs = 0 if compared.drift is None else compared.drift.jobs
    if jobs:
        text = ngettext(
            "%(count)d durable job is not in Redis, although it is older than 30 s; a worker puts it there within "
            "seconds. Start one or look at its log, or run: manage.py delayq_sync",
            "%(count)d durable jobs are not in Redis, although they are older than 30 s; a worker puts them there "
            "within seconds. Start one or look at its log, or run: manage.py delayq_sync",
            jobs,
        )
        yield Problem("stale_jobs", text % {"count": jobs})
    count = excess(compared, redis)
    if count:
        text = ngettext(
            "%(count)d entry of Redis differs from the database. A worker mends that within 10 min; at once: "
            "manage.py delayq_sync",
            "%(count)d entries of Redis differ from the database. A worker mends that within 10 min; at once: "
            "manage.py delayq_sync",
            count,
        )
        yield Problem("drift", text % {"count": count})


def _refused(refused: Named) -> Iterator[Problem]:
    if refused.count:
        text = ngettext(
            "%(count)d schedule fails at each of its due points, because the TASKS backend that it names is unknown or "
            "does not take its task (%(names)s). manage.py delayq_explain NAME says why.",
            "%(count)d schedules fail at each of their due points, because the TASKS backend that they name is unknown "
            "or does not take their task (%(names)s). manage.py delayq_explain NAME says why.",
            refused.count,
        )
        names = ", ".join(refused.names) + (", …" if refused.count > len(refused.names) else "")
        yield Problem("refused", text % {"count": refused.count, "names": names})
