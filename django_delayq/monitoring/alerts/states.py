"""States of alerts: rows that change by compare-and-set, so that each change has one winner.

Note [Once each way]
An alert opens when two checks, `EVERY` seconds apart, have found its condition, and recovers when two have not: what
passes within seconds sends no message. The winner of a change creates the delivery jobs in the same transaction. So a
kill leaves both or neither, and a flush of Redis loses neither, because jobs are rows too. Concurrent checks open an
alert once.

Note [Unknown states stay unchanged]
While Redis does not answer, or a shard is being rebuilt after a flush, its data is not evidence: queues are empty and
workers have not sent a heartbeat yet. Then conditions judged by Redis stay unchanged: those of a queue while any of its
shards is not built, the others while any shard is not built.
"""

from collections.abc import Callable, Iterable, Mapping
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
from ..status import Snapshot, judge, look_quickly
from . import matters
from .matters import Matter

#: Days that rows of recovered alerts are kept.
DAYS_KEPT = 90
#: Share of `EVERY` that counts as elapsed, because checks are slightly irregular.
HELD = 0.8
#: Delivery jobs: failing messages are retried for about half a day.
ATTEMPTS, BACKOFF_SECONDS, TIMEOUT_SECONDS = 20, 10, 120

#: Kinds that do not depend on Redis.
BY_THE_DATABASE = frozenset((*matters.FINDERS, "failed_jobs"))
#: Kinds that describe Redis itself.
OF_REDIS = frozenset(("redis_unreachable", "not_built", "redis_unfit"))

Key = tuple[str, str]


def look_now() -> Snapshot:
    """Take a snapshot and update all alerts; see `follow`. Concurrent calls are safe.

    Raises:
        DatabaseError: The database does not answer.
        ImproperlyConfigured: No TASKS alias can deliver messages; see `find_jobs`.
    """
    snapshot = look_quickly(server=True)
    known: dict[str, list[int]] = {}
    rows = standing()
    for kind, subject in rows:
        if kind in matters.FINDERS and subject:
            known.setdefault(kind, []).append(int(subject))
    found = [*matters.of_problems(judge(snapshot)), *matters.of_failed_jobs(), *matters.of_schedules(known)]
    is_known = _what_is_known(snapshot)
    now = utcnow()
    seen = {(each.kind, each.subject): each for each in reversed(found) if is_known(each.kind, each.queue)}
    follow(rows, seen, is_known, now)
    forget(now - timedelta(days=DAYS_KEPT))
    return snapshot


def _what_is_known(snapshot: Snapshot) -> Callable[[str, str], bool]:
    """Return a test for kind and queue. See Note [Unknown states stay unchanged]."""
    redis, compared = snapshot.redis, snapshot.comparison
    answers = redis is not None and compared is not None and not compared.foreign
    unbuilt = {shard.queue for shard in redis.shards if shard.epoch != "built"} if redis is not None else set()

    def is_known(kind: str, queue: str) -> bool:
        if kind in BY_THE_DATABASE or kind in OF_REDIS:
            return kind != "not_built" or redis is not None
        return answers and (queue not in unbuilt if queue else not unbuilt)

    return is_known


def standing() -> dict[Key, Alert]:
    """Return the rows of open alerts, by kind and subject."""
    return {(row.kind, row.subject): row for row in Alert.objects.using(ledger.database()).open()}


def follow(
    rows: Mapping[Key, Alert], seen: Mapping[Key, Matter], is_known: Callable[[str, str], bool], now: datetime
) -> None:
    """Update alert rows from current conditions; unknown conditions stay unchanged. See Note [Once each way].

    After a DatabaseError, the next check makes the missing changes.
    """
    config = conf.get_config()
    alerts = config.alerts or AlertSettings()
    held = now - timedelta(seconds=alerts.every * HELD)
    objects = Alert.objects.using(ledger.database())
    fresh = [_begun(seen[key], now) for key in seen.keys() - rows.keys()]
    if fresh:
        objects.bulk_create(fresh, ignore_conflicts=True)  # another process may have inserted them
    for key, row in rows.items():
        own = objects.open().filter(pk=row.pk)
        if key in seen:
            if row.gone_at is not None:
                own.update(gone_at=None)
            elif row.told_at is None and row.since <= held:
                _tell(row, Alert.OPENED, {"told_at": now, "text": seen[key].text}, alerts)
        elif is_known(row.kind, row.queue):
            if row.told_at is None:
                own.filter(told_at=None).delete()
            elif row.gone_at is None:
                own.filter(gone_at=None).update(gone_at=now)
            elif row.gone_at <= held:
                _tell(row, Alert.RECOVERED, {"recovered_at": now, "is_open": None}, alerts)


def _begun(matter: Matter, now: datetime) -> Alert:
    title, queue = matter.title, matter.queue
    return Alert(kind=matter.kind, subject=matter.subject, name=title, queue=queue, text=matter.text, since=now)


def _tell(row: Alert, what: str, values: dict[str, Any], alerts: AlertSettings) -> None:
    task = find_jobs(alerts)
    with transaction.atomic(using=ledger.database()):
        _write_change(row, what, values, task, alerts.channels)


def _write_change(row: Alert, what: str, values: dict[str, Any], task: Any, channels: Iterable[str]) -> None:
    using = ledger.database()
    rows = Alert.objects.using(using).open().filter(pk=row.pk)
    rows = rows.filter(told_at=None) if what == Alert.OPENED else rows.filter(gone_at=row.gone_at)
    if not rows.update(**values):
        return
    for name, value in values.items():
        setattr(row, name, value)
    if task is not None:
        task.enqueue_many(((str(row.pk), what, channel), {}) for channel in channels)
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


def forget(before: datetime) -> None:
    """Delete alerts that recovered before this instant."""
    Alert.objects.using(ledger.database()).filter(recovered_at__lt=before).delete()
