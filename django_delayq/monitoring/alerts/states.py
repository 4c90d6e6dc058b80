"""States of alerts: each is a row, and every change of it a compare-and-set that one alone wins.

Note [Once each way]
A state is told when two looks, `EVERY` seconds apart, have seen it, and recovered when two have not: what passes by
itself within seconds is no message. Who wins the change of the row writes the jobs that deliver it in the same
transaction. So a kill leaves both or neither; a flush of Redis loses neither, as the jobs are rows too; and two that
look at the same time tell it once.

Note [What is not known]
While Redis does not answer, or a shard is being rebuilt after a flush, there is nothing to tell of it: queues are
empty, no worker has said yet that it lives. Then the states that are judged by Redis stay as they are, those of a queue
as long as one of its shards is not built, the others as long as any is.
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

#: Rows of what has recovered stay for so long.
DAYS_KEPT = 90
#: Looks are not quite `EVERY` apart.
HELD = 0.8
#: A message that nobody takes is tried for about half a day.
ATTEMPTS, BACKOFF_SECONDS, TIMEOUT_SECONDS = 20, 10, 120

#: These are judged whatever Redis is like.
BY_THE_DATABASE = frozenset((*matters.FINDERS, "failed_jobs"))
#: And these say what Redis is like.
OF_REDIS = frozenset(("redis_unreachable", "not_built", "redis_unfit"))

Key = tuple[str, str]


def look_now() -> Snapshot:
    """Look, and have every state follow what is seen; see `follow`. For looks at the same time no harm is done.

    Raises:
        DatabaseError: The database does not answer.
        ImproperlyConfigured: Nobody could be told; see `find_jobs`.
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
    """See Note [What is not known]."""
    redis, compared = snapshot.redis, snapshot.comparison
    answers = redis is not None and compared is not None and not compared.foreign
    unbuilt = {shard.queue for shard in redis.shards if shard.epoch != "built"} if redis is not None else set()

    def is_known(kind: str, queue: str) -> bool:
        if kind in BY_THE_DATABASE or kind in OF_REDIS:
            return kind != "not_built" or redis is not None
        return answers and (queue not in unbuilt if queue else not unbuilt)

    return is_known


def standing() -> dict[Key, Alert]:
    """Return the rows of states that stand, by kind and subject."""
    return {(row.kind, row.subject): row for row in Alert.objects.using(ledger.database()).open()}


def follow(
    rows: Mapping[Key, Alert], seen: Mapping[Key, Matter], is_known: Callable[[str, str], bool], now: datetime
) -> None:
    """Have the rows follow what was seen. What is not known now stays as it is. See Note [Once each way].

    Raises:
        DatabaseError: What was not changed is changed after the next look.
    """
    config = conf.get_config()
    alerts = config.alerts or AlertSettings()
    held = now - timedelta(seconds=alerts.every * HELD)
    objects = Alert.objects.using(ledger.database())
    fresh = [_begun(seen[key], now) for key in seen.keys() - rows.keys()]
    if fresh:
        objects.bulk_create(fresh, ignore_conflicts=True)  # somebody else may have looked too
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
    """Return the task whose jobs deliver messages; None where there is nothing to deliver.

    Raises:
        ImproperlyConfigured: No alias of TASKS takes jobs; says what to add.
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
        run_after=None,  # Django 6.0 has no default of these two
        max_attempts=ATTEMPTS,
        backoff=BACKOFF_SECONDS,
        timeout=TIMEOUT_SECONDS,
    )


def forget(before: datetime) -> None:
    """Delete what has recovered before this instant."""
    Alert.objects.using(ledger.database()).filter(recovered_at__lt=before).delete()
