"""What is wrong, and what is worth knowing, judged once from a snapshot. Queries nothing.

Note [Problems delay work]
A problem keeps due points from running in time, or Redis from matching the database, for longer than seconds. A shard
that waits for a rebuild is a problem; one that is being rebuilt is not. Failing tasks, broken schedules, pauses and
limits have the status FINE. If the prefix belongs to another installation, only that is reported.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..index.counters import DISCARDED
from ..models import Control, explain_wait
from .database_side import MOST_COUNTED, MOST_UNKNOWN, NAMES_SHOWN, Comparison, Named, Unnamed
from .minutes import OVERLOAD
from .redis_side import QueueView, RedisView, ServerView
from .snapshot import FINE, Problem, Snapshot

MAX_WAIT_SECONDS = 60.0


def judge(snapshot: Snapshot, *, max_wait: float = MAX_WAIT_SECONDS) -> list[Problem]:
    """Return what is wrong, then what is worth knowing; see Note [Problems delay work]. `max_wait` is in seconds."""
    compared, redis = snapshot.comparison, snapshot.redis
    problems = [snapshot.blind[code] for code in sorted(snapshot.blind, reverse=True)]
    for server in redis.servers if redis is not None else ():
        problems += _judge_server(server)
    if compared is not None and compared.foreign:
        return [*problems, Problem("foreign_layout", compared.foreign)]
    if redis is not None:
        problems += _judge_queues(redis, snapshot, max_wait)
    if compared is not None and redis is not None:
        problems += judge_unnamed(compared.unnamed, redis)
        problems += _judge_differences(compared, redis)
    return [*problems, *_judge_discarded(snapshot), *_judge_definitions(snapshot), *_find_remarks(snapshot)]


def simplify(problems: Sequence[Problem], redis: RedisView | None, *, details: bool) -> list[Problem]:
    """Return the problems for a page, each cause once. Only with `details`, a message has the address of Redis."""
    found = [each for each in problems if each.is_wrong]
    if redis is not None and not redis.live and sum(each.code == "no_worker" for each in found) > 1:
        text = _("No worker runs, so nothing starts. Start one: manage.py delayq_worker")
        found = [each for each in found if each.code not in ("no_worker", "overdue")]
        found = [Problem("no_worker", text), *found]
    if not details:
        hidden = _("Redis does not answer.")
        found = [replace(each, message=hidden) if each.code == "redis_unreachable" else each for each in found]
    return found


def list_remarks(problems: Iterable[Problem]) -> list[Problem]:
    """Return what is not wrong but contradicts "All is well"."""
    return [each for each in problems if not each.is_wrong and each.tone != "quiet"]


def _judge_discarded(snapshot: Snapshot) -> Iterator[Problem]:
    count = sum(row.tally.get(DISCARDED, 0) for row in snapshot.rows or ())
    if count:
        text = ngettext(
            "The database refused %(count)d outcome in the last hour; its run executes again. The "
            "worker's log has the run and the error.",
            "The database refused %(count)d outcomes in the last hour; their runs execute again. The "
            "workers' logs have the runs and the errors.",
            count,
        )
        yield Problem("discarded", text % {"count": count})


def _find_remarks(snapshot: Snapshot) -> Iterator[Problem]:
    if snapshot.redis is not None and not snapshot.redis.live:
        yield Problem("idle", _("No worker runs."), FINE, tone="warn")
    if (states := snapshot.states) is not None:
        failing, broken, often = states.failing.count, states.broken.count, states.restarted
        yield from _build_remark(
            "restarted", often,
            ngettext("%(count)s run keeps losing its worker", "%(count)s runs keep losing their workers", often),
        )  # fmt: skip
        yield from _build_remark(
            "failing", failing, ngettext("%(count)s schedule fails", "%(count)s schedules fail", failing)
        )
        yield from _build_remark(
            "broken", broken, ngettext("%(count)s schedule is broken", "%(count)s schedules are broken", broken)
        )
    failed = sum((snapshot.failed_jobs or {}).values())
    yield from _build_remark("failed_jobs", failed, ngettext("%(count)s failed job", "%(count)s failed jobs", failed))
    for row in snapshot.held_back or ():
        tone, text = "warn" if row.is_paused() else "quiet", explain_wait([row]) or f"{row}: {row.restrictions}"
        queue = row.name if row.kind == Control.Target.QUEUE else ""
        yield Problem("held_back", text, FINE, queue, str(row.pk), row.name, tone)
    if states is not None:
        text = ngettext("%(count)s schedule is paused", "%(count)s schedules are paused", states.paused)
        yield from _build_remark("paused", states.paused, text, "quiet")


def _build_remark(code: str, count: int, text: str, tone: str = "bad") -> Iterator[Problem]:
    if count:
        yield Problem(code, text % {"count": format_count(count)}, FINE, tone=tone)


def get_exit_status(problems: Iterable[Problem]) -> int:
    return max((problem.status for problem in problems), default=FINE)


def format_count(count: int) -> str:
    """Format a number that was counted up to a maximum of at least MOST_UNKNOWN."""
    return str(count) if count <= MOST_UNKNOWN else f"{MOST_UNKNOWN}+"


def _judge_definitions(snapshot: Snapshot) -> Iterator[Problem]:
    if (unknown := snapshot.unknown_tasks) and unknown.count:
        text = ngettext(
            "%(count)s schedule uses a task that no installed app has, and does not run: %(names)s. "
            "If the task was renamed, add it to DELAYQ['TASK_ALIASES']; if it was removed, pause or "
            "delete the schedule.",
            "%(count)s schedules use a task that no installed app has, and do not run: %(names)s. If "
            "the task was renamed, add it to DELAYQ['TASK_ALIASES']; if it was removed, pause or "
            "delete the schedules.",
            unknown.count,
        )
        yield Problem("unknown_tasks", text % {"count": format_count(unknown.count), "names": unknown.listed})
    if (late := snapshot.late) and late.count:
        text = ngettext(
            "%(count)s schedule has not succeeded within its expected time: %(names)s. For details, "
            "run: manage.py delayq_status NAME",
            "%(count)s schedules have not succeeded within their expected time: %(names)s. For "
            "details, run: manage.py delayq_status NAME",
            late.count,
        )
        yield Problem("late", text % {"count": format_count(late.count), "names": late.listed})
    if (refused := snapshot.refused) and refused.count:
        text = ngettext(
            "%(count)d schedule fails each time, because the TASKS backend that it names is unknown "
            "or does not accept its task (%(names)s). For details, run: manage.py delayq_status NAME",
            "%(count)d schedules fail each time, because the TASKS backend that they name is unknown "
            "or does not accept their task (%(names)s). For details, run: manage.py delayq_status "
            "NAME",
            refused.count,
        )
        yield Problem("unknown_name", text % {"count": refused.count, "names": refused.listed})


def judge_unnamed(unnamed: Iterable[Unnamed], redis: RedisView) -> Iterator[Problem]:
    """Yield what no worker will run. Queues that a live worker serves are left out: its settings are different."""
    waiting = [each for each in unnamed if each.schedules or each.runs or each.jobs]
    for each in waiting:
        if each.kind == "queue" and not redis.is_served(each.name):
            text = _(
                "DELAYQ['QUEUES'] does not contain queue %(name)s, so nothing of it runs (enabled "
                "schedules: %(schedules)d, queued runs: %(runs)d, open jobs: %(jobs)d). Add it until its "
                "runs and jobs are done, and give its schedules another queue."
            )
            yield Problem("unknown_name", text % each._asdict(), queue=each.name)
    texts = {
        "task": _(
            "No installed app has the task of some jobs: %(names)s. If the task was renamed, add it "
            "to DELAYQ['TASK_ALIASES']; if it was removed, delete the jobs."
        ),
        "backend": _("TASKS lacks the alias of some jobs: %(names)s. Add it, or delete the jobs."),
    }
    for kind, text in texts.items():
        names = [f"{each.name} ({each.jobs})" for each in waiting if each.kind == kind]
        if names:
            yield Problem("unknown_name", text % {"names": Named(len(names), tuple(names[:NAMES_SHOWN])).listed})


def _judge_server(server: ServerView) -> Iterator[Problem]:
    if server.memory_policy not in ("", "noeviction"):
        text = _(
            "Redis has maxmemory-policy %(policy)s and would evict schedules, so no worker starts. "
            "Set it to noeviction, or use another server."
        )
        yield Problem("redis_unfit", text % {"policy": server.memory_policy})
    if server.max_bytes is not None and (server.used_bytes or 0) >= server.max_bytes:
        yield Problem("redis_unfit", _("The memory of Redis is full, so nothing can be added. Increase maxmemory."))
    if server.disk_problem:
        text = _("Redis cannot write to its disk (%(field)s) and may refuse all writes. Check its log and its disk.")
        yield Problem("redis_unfit", text % {"field": server.disk_problem})


def _judge_queues(redis: RedisView, snapshot: Snapshot, max_wait: float) -> Iterator[Problem]:
    """Yield problems of queues. An entry of a paused queue may wait for any time."""
    paused = {row.name for row in snapshot.held_back or () if row.kind == "queue" and row.is_paused()}
    for queue in redis.queues:
        yield from _judge_waiting(queue, math.inf if queue.queue in paused else max_wait)
        absent = sum(shard.epoch == "absent" for shard in redis.shards if shard.queue == queue.queue)
        yield from _report_unbuilt(queue.queue, absent) if absent else ()
    if snapshot.load is not None and snapshot.load.overloaded:
        yield Problem("overdue", _(OVERLOAD) % snapshot.load.values)


def _report_unbuilt(queue: str, absent: int) -> Iterator[Problem]:
    text = ngettext(
        "%(count)d shard of queue %(queue)s is not built in Redis: it was flushed, or no worker has run yet. A "
        "worker builds it within seconds; if none runs, start one: manage.py delayq_worker",
        "%(count)d shards of queue %(queue)s are not built in Redis: they were flushed, or no "
        "worker has run yet. A worker builds them within seconds; if none runs, start one: "
        "manage.py delayq_worker",
        absent,
    )
    yield Problem("not_built", text % {"count": absent, "queue": queue}, queue=queue)


def _judge_waiting(queue: QueueView, max_wait: float) -> Iterator[Problem]:
    """Yield a queue that no worker serves, or that is late. With jobs alone, it needs no worker until a job is late."""
    values = {"queue": queue.queue, "count": queue.members, "span": format_span(queue.oldest_due), "most": max_wait}
    late = queue.oldest_due > max_wait
    if not queue.served and (late or queue.members > queue.jobs):
        text = ngettext(
            "No live worker serves queue %(queue)s: %(count)d schedule, run or job of it cannot start. Start a worker: "
            "manage.py delayq_worker --queues %(queue)s",
            "No live worker serves queue %(queue)s: %(count)d of its schedules, runs and jobs cannot start. Start a "
            "worker: manage.py delayq_worker --queues %(queue)s",
            queue.members,
        )
        yield Problem("no_worker", text % values, queue=queue.queue)
    elif late:
        text = _(
            "In queue %(queue)s an entry has been due for %(span)s, more than %(most)g s. If its "
            "workers are busy, start more workers or threads; otherwise check their log."
        )
        yield Problem("overdue", text % values, queue=queue.queue)


def format_span(seconds: float) -> str:
    """Return "95 s", "17 min" or "16 h"."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _judge_differences(compared: Comparison, redis: RedisView) -> Iterator[Problem]:
    if compared.stale_edits:
        text = ngettext(
            "%(count)d edit is not in Redis, although it is older than 30 s. A worker adds it within "
            "seconds: start one, check its log, or run: manage.py delayq_sync",
            "%(count)d edits are not in Redis, although they are older than 30 s. A worker adds them "
            "within seconds: start one, check its log, or run: manage.py delayq_sync",
            compared.stale_edits,
        )
        yield Problem("out_of_sync", text % {"count": min(compared.stale_edits, MOST_COUNTED)})
    if count := compared.count_excess(redis):
        text = ngettext(
            "%(count)d entry in Redis differs from the database. A worker repairs it within 10 min; "
            "to repair it now, run: manage.py delayq_sync",
            "%(count)d entries in Redis differ from the database. A worker repairs them within 10 "
            "min; to repair them now, run: manage.py delayq_sync",
            count,
        )
        yield Problem("out_of_sync", text % {"count": count})
