"""States of alerts: rows that change by compare-and-set, so that each change has one winner.

Note [Once each way]
An alert opens when two checks, `EVERY` seconds apart, have found its condition, and recovers when two have not: what
passes within seconds sends no message. The winner of a change creates the delivery jobs in the same transaction.

Note [Unknown states stay unchanged]
While Redis does not answer, or a shard is being rebuilt after a flush, its data is not evidence. Then conditions judged
by Redis stay unchanged: those of a queue while any of its shards is not built, the others while any shard is not built.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from ... import conf, ledger
from ...calls import registry
from ...calls.call import alias_for
from ...calls.side_channels import send
from ...conf.alerts import AlertSettings
from ...models import Alert
from ...recurrence.point import utcnow
from ...signals import alert_changed
from ..problems import Problem
from ..snapshot import Snapshot, take_snapshot
from .conditions import FINDERS, find_conditions

#: Days that rows of recovered alerts are kept.
DAYS_KEPT = 90
#: Share of `EVERY` that counts as elapsed, because checks are slightly irregular.
HELD = 0.8
#: Delivery jobs: failing messages are retried for about half a day.
ATTEMPTS, BACKOFF_SECONDS, TIMEOUT_SECONDS = 20, 10, 120

#: Kinds that do not depend on Redis.
BY_THE_DATABASE = frozenset((*FINDERS, "failed_jobs"))
#: Kinds that describe Redis itself.
OF_REDIS = frozenset(("redis_unreachable", "not_built", "redis_unfit"))

Key = tuple[str, str]


def look_now() -> Snapshot:
    """Take a snapshot and update all alerts; see Note [Once each way]. Concurrent calls are safe.

    After a DatabaseError, the next check makes the missing changes.

    Raises:
        DatabaseError: The database does not answer.
        ImproperlyConfigured: No TASKS alias can deliver messages; see `find_jobs`.
    """
    snapshot = take_snapshot()
    rows = {(row.kind, row.subject): row for row in Alert.objects.using(ledger.database()).open()}
    known: dict[str, list[int]] = {}
    for kind, subject in rows:
        if kind in FINDERS and subject:
            known.setdefault(kind, []).append(int(subject))
    found: dict[Key, Problem] = {}
    for problem in find_conditions(snapshot, known):
        if _is_known(snapshot, problem.code, problem.queue):
            found.setdefault((problem.code, problem.subject or problem.queue), problem)
    now = utcnow()
    _follow(rows, found, snapshot, now)
    Alert.objects.using(ledger.database()).filter(recovered_at__lt=now - timedelta(days=DAYS_KEPT)).delete()
    return snapshot


def _is_known(snapshot: Snapshot, kind: str, queue: str) -> bool:
    """Return whether the snapshot has evidence of a kind. See Note [Unknown states stay unchanged]."""
    redis, compared = snapshot.redis, snapshot.comparison
    if "database_unreachable" in snapshot.blind:
        return False
    if kind in BY_THE_DATABASE or kind in OF_REDIS:
        return kind != "not_built" or redis is not None
    if redis is None or compared is None or compared.foreign:
        return False
    return not any(shard.epoch != "built" for shard in redis.shards if not queue or shard.queue == queue)


def _follow(rows: Mapping[Key, Alert], seen: Mapping[Key, Problem], snapshot: Snapshot, now: datetime) -> None:
    alerts = conf.get_config().alerts or AlertSettings()
    held = now - timedelta(seconds=alerts.every * HELD)
    objects = Alert.objects.using(ledger.database())
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
            elif row.told_at is None and row.since <= held:
                _tell(row, Alert.OPENED, {"told_at": now, "text": seen[key].message}, alerts)
        elif _is_known(snapshot, row.kind, row.queue):
            if row.told_at is None:
                own.filter(told_at=None).delete()
            elif row.gone_at is None:
                own.filter(gone_at=None).update(gone_at=now)
            elif row.gone_at <= held:
                _tell(row, Alert.RECOVERED, {"recovered_at": now, "is_open": None}, alerts)


def _tell(row: Alert, what: str, values: dict[str, Any], alerts: AlertSettings) -> None:
    task = find_jobs(alerts)
    with transaction.atomic(using=ledger.database()):
        _write_change(row, what, values, task, alerts)


def _write_change(row: Alert, what: str, values: dict[str, Any], task: Any, alerts: AlertSettings) -> None:
    using = ledger.database()
    rows = Alert.objects.using(using).open().filter(pk=row.pk)
    rows = rows.filter(told_at=None) if what == Alert.OPENED else rows.filter(gone_at=row.gone_at)
    if not rows.update(**values):
        return
    for name, value in values.items():
        setattr(row, name, value)
    if task is not None:
        task.enqueue_many(((str(row.pk), what, channel), {}) for channel in alerts.channels)
    tell = partial(send, alert_changed, "alert_changed", sender=Alert, alert=row, what=what)
    transaction.on_commit(tell, using=using, robust=True)


def find_jobs(alerts: AlertSettings) -> Any:
    """Return the task whose jobs deliver messages; None without channels.

    Raises:
        ImproperlyConfigured: No TASKS alias accepts jobs.
    """
    if not alerts.channels:
        return None
    found = alias_for(conf.get_config().queues)
    if found is None:
        raise ImproperlyConfigured(
            "DELAYQ['ALERTS'] sends mail and webhooks by jobs, and no alias of TASKS takes them. Add one: "
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
