"""Alerts: the problems that have one, and their rows, which change by compare-and-set.

Note [Alerts per schedule are limited]
A schedule has the kinds `failing` (FAILURES in a row), `late`, `unknown_task` and `broken`, a queue `failed_jobs`. All
others are codes of what is wrong in a snapshot, except those that sum up schedules. Each kind has alerts for at most
MOST schedules; one more says that there are others. A schedule with an alert keeps it until it has recovered.

Note [One message per change]
An alert opens when two checks in a row have found its condition, and recovers when two have not, so that a condition
of a few seconds sends no message. The winner of a change creates the delivery jobs in the same transaction.

Note [Unknown states stay unchanged]
While Redis does not answer, or a shard is being rebuilt after a flush, its data is not evidence. Then conditions judged
by Redis stay unchanged: those of a queue while any of its shards is not built, the others while any shard is not built.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf, ledger
from ...calls import registry
from ...calls.call import find_alias
from ...calls.side_channels import send
from ...conf.alerts import AlertSettings
from ...models import Alert, Condition, Schedule, ScheduleState
from ...recurrence.point import utcnow
from ...signals import alert_changed
from ..database_side import MOST_UNKNOWN, find_late, find_unknown_tasks, query_enabled, read_used
from ..observing import take_snapshot
from ..snapshot import Problem, Snapshot

#: Days that rows of recovered alerts are kept.
DAYS_KEPT = 90
#: Minimum share of `EVERY` between the two checks of a change: checks are slightly irregular.
HELD = 0.8
#: Delivery jobs: failing messages are retried for about half a day.
ATTEMPTS, BACKOFF_SECONDS, TIMEOUT_SECONDS = 20, 10, 120
#: Maximum schedules with an alert of each kind.
MOST = 100
#: Problems of the snapshot that sum up schedules.
SUMS = frozenset(("unknown_tasks", "late"))


def find_conditions(snapshot: Snapshot, known: Mapping[str, list[int]]) -> Iterator[Problem]:
    """Yield the problems that need an alert; `known` has the schedules with an open alert, by kind."""
    yield from (problem for problem in snapshot.problems if problem.is_wrong and problem.code not in SUMS)
    yield from _find_failed_jobs(snapshot.failed_jobs or {})
    for kind, find in FINDERS.items():
        former = known.get(kind, [])
        yield from find(len(former), former) if former else ()
        fresh = [each for each in find(MOST + 1, None) if int(each.subject) not in former]
        room = max(0, MOST - len(former))
        yield from fresh[:room]
        if len(fresh) > room:
            text = _(
                "More than %(count)d schedules have this problem (%(kind)s); the others have no alerts of their own."
            )
            yield Problem(kind, text % {"count": MOST, "kind": kind})


def _find_failed_jobs(failed: Mapping[str, int]) -> Iterator[Problem]:
    for queue, count in sorted(failed.items()):
        text = ngettext(
            "Queue %(queue)s has %(count)d failed job. Retry or delete it in the admin, under Failures.",
            "Queue %(queue)s has %(count)d failed jobs. Retry or delete them in the admin, under Failures.",
            count,
        )
        yield Problem("failed_jobs", text % {"queue": queue, "count": count}, queue=queue)


def _find_failing(most: int, among: Collection[int] | None) -> list[Problem]:
    alerts = conf.get_config().alerts
    found = []
    for row in _find(most, among, failing_streak__gte=1 if alerts is None else alerts.failures):
        count = row.state.failing_streak
        text = ngettext(
            "%(name)s (%(task)s) has failed.", "%(name)s (%(task)s) has failed %(count)d times in a row.", count
        )
        found.append(_build_problem("failing", row, text, count=count))
    return found


def _find_broken(most: int, among: Collection[int] | None) -> list[Problem]:
    text = _("%(name)s is broken: its next due time cannot be computed. %(reason)s")
    rows = _find(most, among, condition=Condition.BROKEN)
    return [_build_problem("broken", row, text, reason=row.state.condition_reason) for row in rows]


def _find_unknown(most: int, among: Collection[int] | None) -> list[Problem]:
    rows: QuerySet[Schedule] = Schedule.objects.using(ledger.get_database()).filter(
        task__in=find_unknown_tasks(read_used()["task"])
    )
    rows = (rows if among is None else rows.filter(pk__in=among)).order_by("task")[:MOST_UNKNOWN]
    text = _("%(name)s uses the task %(task)s, which no installed app has, and does not run.")
    return [_build_problem("unknown_task", row, text) for row in rows if row.enabled][:most]


def _find_late(most: int, among: Collection[int] | None) -> list[Problem]:
    text = _("%(name)s was due %(due)s and has not succeeded within %(within)s, nor since.")
    return [
        _build_problem("late", row, text, due=f"{row.due_at:%Y-%m-%d %H:%M:%S} UTC", within=row.within)
        for row in find_late(most, among)
    ]


#: By kind: finds up to a number of schedules, all or those with these primary keys.
FINDERS: dict[str, Callable[[int, Collection[int] | None], list[Problem]]] = {
    "failing": _find_failing, "late": _find_late, "unknown_task": _find_unknown, "broken": _find_broken,
}  # fmt: skip


def _find(most: int, among: Collection[int] | None, **state: Any) -> list[Schedule]:
    states = ScheduleState.objects.using(ledger.get_database()).filter(**state)
    states = states if among is None else states.filter(pk__in=among)
    return list(query_enabled(states).select_related("state").order_by("pk")[:most])


def _build_problem(kind: str, row: Any, text: str, **more: Any) -> Problem:
    values = {"name": row.name, "task": row.task, **more}
    return Problem(kind, text % values, queue=row.queue, subject=str(row.pk), name=row.name)


#: Kinds that do not depend on Redis.
BY_THE_DATABASE = frozenset((*FINDERS, "failed_jobs"))
#: Kinds that describe Redis itself.
OF_REDIS = frozenset(("redis_unreachable", "not_built", "redis_unfit"))

Key = tuple[str, str]


def look_now() -> Snapshot:
    """Take a snapshot and update all alerts; see Note [One message per change]. Concurrent calls are safe.

    Raises DatabaseError (the next call makes the missing changes) and ImproperlyConfigured, as `find_jobs` does.
    """
    snapshot = take_snapshot()
    rows = {(row.kind, row.subject): row for row in Alert.objects.using(ledger.get_database()).open()}
    known: dict[str, list[int]] = {}
    for kind, subject in rows:
        if kind in FINDERS and subject:
            known.setdefault(kind, []).append(int(subject))
    several: dict[Key, list[Problem]] = {}
    for problem in find_conditions(snapshot, known):
        if _is_known(snapshot, problem.code, problem.queue):
            key = (problem.code, problem.subject or problem.queue)
            several.setdefault(key, []).append(problem)
    texts = {key: "\n".join(dict.fromkeys(each.message for each in problems)) for key, problems in several.items()}
    found = {key: replace(several[key][0], message=text) for key, text in texts.items()}
    now = utcnow()
    _follow(rows, found, snapshot, now)
    Alert.objects.using(ledger.get_database()).filter(recovered_at__lt=now - timedelta(days=DAYS_KEPT)).delete()
    return snapshot


def _is_known(snapshot: Snapshot, kind: str, queue: str) -> bool:
    """Return whether the snapshot has evidence of a kind. See Note [Unknown states stay unchanged]."""
    redis, compared = snapshot.redis, snapshot.comparison
    if "database_unreachable" in snapshot.blind:
        return False
    if kind in BY_THE_DATABASE or kind in OF_REDIS:
        return redis is not None or kind in snapshot.blind or kind not in ("not_built", "redis_unfit")
    if redis is None or compared is None or compared.foreign:
        return False
    return not any(shard.epoch != "built" for shard in redis.shards if not queue or shard.queue == queue)


def _follow(rows: Mapping[Key, Alert], seen: Mapping[Key, Problem], snapshot: Snapshot, now: datetime) -> None:
    alerts = conf.get_config().alerts or AlertSettings()
    held = now - timedelta(seconds=alerts.every * HELD)
    objects = Alert.objects.using(ledger.get_database())
    fresh = [
        Alert(kind=kind, subject=subject, name=each.name or each.queue, queue=each.queue, text=each.message, since=now)
        for (kind, subject), each in seen.items()
        if (kind, subject) not in rows
    ]
    if fresh:
        objects.bulk_create(fresh, ignore_conflicts=True)  # another process may have inserted them
    for key, row in rows.items():
        own = objects.open().filter(pk=row.pk)
        if key in seen:
            if row.gone_at is not None:
                own.update(gone_at=None)
            elif row.reported_at is None and row.since <= held:
                _announce_change(row, Alert.OPENED, {"reported_at": now, "text": seen[key].message}, alerts)
        elif _is_known(snapshot, row.kind, row.queue):
            if row.reported_at is None:
                own.filter(reported_at=None).delete()
            elif row.gone_at is None:
                own.filter(gone_at=None).update(gone_at=now)
            elif row.gone_at <= held:
                _announce_change(row, Alert.RECOVERED, {"recovered_at": now, "is_open": None}, alerts)


def _announce_change(row: Alert, what: str, values: dict[str, Any], alerts: AlertSettings) -> None:
    task = find_jobs(alerts)
    with transaction.atomic(using=ledger.get_database()):
        _write_change(row, what, values, task, alerts)


def _write_change(row: Alert, what: str, values: dict[str, Any], task: Any, alerts: AlertSettings) -> None:
    using = ledger.get_database()
    rows = Alert.objects.using(using).open().filter(pk=row.pk)
    rows = rows.filter(reported_at=None) if what == Alert.OPENED else rows.filter(gone_at=row.gone_at)
    if not rows.update(**values):
        return
    for name, value in values.items():
        setattr(row, name, value)
    if task is not None:
        task.enqueue_many(((str(row.pk), what, channel), {}) for channel in alerts.channels)
    announce = partial(send, alert_changed, "alert_changed", sender=Alert, alert=row, what=what)
    transaction.on_commit(announce, using=using, robust=True)


def find_jobs(alerts: AlertSettings) -> Any:
    """Return the task whose jobs deliver messages, None without channels. Raises ImproperlyConfigured if none can."""
    if not alerts.channels:
        return None
    found = find_alias(conf.get_config().queues)
    if found is None:
        raise ImproperlyConfigured(
            "DELAYQ['ALERTS'] sends mail and webhooks as jobs, but no alias of TASKS accepts them. Add one: "
            '"alerts": {"BACKEND": "django_delayq.backend.DelayQBackend"}.'
        )
    backend, queue = found
    return backend.task_class(
        func=registry.get_task(registry.ALERT_TASK).func,
        backend=backend.alias,
        queue_name=queue,
        priority=0,
        run_after=None,  # Django 6.0 has no default for this one and the priority
        max_attempts=ATTEMPTS,
        backoff=BACKOFF_SECONDS,
        timeout=TIMEOUT_SECONDS,
    )
