"""Mirrors from web requests: after the commit, with short timeouts. The sweeps make up for failures."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connections, transaction
from django.db.models.signals import post_delete, post_save, pre_save

from .. import conf
from ..exceptions import BrokerError, BrokerUnavailable
from ..index import Broker, EntryView, web
from ..ledger import chain
from ..ledger.rows import AnyRun
from ..models import Schedule, ScheduleQuerySet, Tombstone
from ..models.primary import list_heirs
from ..signals import definitions_changed, definitions_deleted
from .layout import ForeignLayout, OtherLayout, check_layout
from .read import read_wanted
from .runs import move_run, put_runs
from .write import remove_tombstones, sync

logger = logging.getLogger("django_delayq.sync")

#: Maximum schedules that a request mirrors: larger changes are left to the workers' sweep, within seconds.
MOST_AT_ONCE = 500
#: Interval at which an enqueuing process checks the layout, in seconds.
CHECK_SECONDS = 1.0
#: The broker that was checked last, and when, in monotonic seconds.
_checked: tuple[object, float] = None, 0.0


def connect() -> None:
    for model in list_heirs(Schedule):
        pre_save.connect(_receive_raw, sender=model, dispatch_uid="django_delayq.raw")
        post_save.connect(_mirror_saved, sender=model, dispatch_uid="django_delayq.saved")
        if model._meta.concrete_model is Schedule:  # deleting a row of a child model also deletes its `Schedule`
            post_delete.connect(_receive_deletion, sender=model, dispatch_uid="django_delayq.deleted")
    definitions_changed.connect(_mirror_changed, sender=Schedule, dispatch_uid="django_delayq.changed")
    definitions_deleted.connect(_mirror_deletions, dispatch_uid="django_delayq.bulk_deleted")


def _receive_raw(instance: Schedule, raw: bool, using: str, **kwargs: Any) -> None:
    # loaddata writes dumped rows without Schedule.save(): they become definitions that begin now.
    if raw:
        old = Schedule._base_manager.using(using).filter(pk=instance.pk).values_list("queue", "generation").first()
        if old is not None and old[0] != instance.queue:
            Tombstone.add([(instance.pk, *old)], using=using)
        instance.begin_version()


def _mirror_saved(instance: Schedule, using: str, **kwargs: Any) -> None:
    _mirror_changed([instance.pk], using)


def _mirror_changed(pks: Sequence[int], using: str, **kwargs: Any) -> None:
    """Mirror these schedules; their states get the next points now, even if Redis is unavailable."""
    if pks and len(pks) <= MOST_AT_ONCE and conf.can_mirror():
        read_wanted(pks)
        follow_after_commit(lambda broker: sync(broker, pks), using=using, what="An edit")


def _receive_deletion(instance: Schedule, using: str, origin: object = None, **kwargs: Any) -> None:
    entry = (instance.pk, instance.queue, instance.generation)
    if isinstance(origin, ScheduleQuerySet):
        origin.gone.append(entry)  # the query set announces all of them at its end
    else:
        _mirror_deletions([entry], using)


def _mirror_deletions(entries: Sequence[tuple[int, str, int]], using: str, **kwargs: Any) -> None:
    if entries and conf.get_config().mirror:
        Tombstone.add(entries, using=using)
        if len(entries) <= MOST_AT_ONCE:
            follow_after_commit(remove_tombstones, using=using, what="A deletion")


def put_after_commit(runs: Sequence[AnyRun], *, using: str, then: Callable[[], object] | None = None) -> None:
    """Put rows into Redis after the transaction commits, then call `then`. Never raises because of Redis."""
    connection: Any = connections[using]
    pending = _find_pending(connection) if connection.in_atomic_block and conf.get_config().mirror else None
    put = pending or _Put()
    put.runs += runs
    put.calls += [] if then is None else [then]
    if pending is None:
        connection.on_commit(put.carry_out, robust=True)
        if connection.in_atomic_block:
            connection._delayq_put = len(connection.run_on_commit) - 1, frozenset(connection.savepoint_ids), put


@dataclass(slots=True)
class _Put:
    runs: list[AnyRun] = field(default_factory=list)
    calls: list[Callable[[], object]] = field(default_factory=list)

    def carry_out(self) -> None:
        put_now(self.runs)
        for call in self.calls:
            call()


def _find_pending(connection: Any) -> _Put | None:
    """Return the pending rows of the same savepoint; None if there are none, or they were rolled back."""
    if getattr(connection.atomic_blocks[-1], "_from_testcase", False):  # a TestCase keeps called hooks
        return None
    at, savepoints, put = getattr(connection, "_delayq_put", (-1, None, None))
    hooks = connection.run_on_commit
    if not 0 <= at < len(hooks) or savepoints != frozenset(connection.savepoint_ids):
        return None
    return put if getattr(hooks[at][1], "__self__", None) is put else None


def put_now(runs: Sequence[AnyRun]) -> None:
    """Put committed rows into Redis. Never raises because of Redis: a sweep puts what is missed."""
    if conf.get_config().mirror:
        _attempt("A requested run or a job", lambda broker: put_runs(broker, runs), seldom=True)


def follow_after_commit(write: Callable[[Broker], object], *, using: str, what: str = "A change of a job") -> None:
    """Write a change to Redis after the transaction commits. Never raises because of Redis."""
    if conf.get_config().mirror:
        transaction.on_commit(lambda: _attempt(what, write), using=using, robust=True)


def move_now(run: AnyRun, when: datetime) -> bool:
    """Move the time of a waiting row; False if a worker has it. Raises what `web.ask` does, and ForeignLayout."""

    def move(broker: Broker) -> bool:
        check_layout(broker, claim=False)
        return move_run(broker, run, when)

    return web.ask(move)


def _attempt(what: str, write: Callable[[Broker], object], *, seldom: bool = False) -> None:
    """Write to Redis; log errors. `seldom`: check the layout once in CHECK_SECONDS, so that a job costs one script."""

    def check_and_write(broker: Broker) -> None:
        global _checked
        now = time.monotonic()
        if not seldom or _checked[0] is not broker or now >= _checked[1] + CHECK_SECONDS:
            check_layout(broker, claim=False)  # only workers claim: a web process may be the first after a flush
            _checked = broker, now
        write(broker)

    try:
        web.ask(check_and_write)
    except web.RedisSkipped as error:
        logger.debug("%s is not mirrored yet: %s", what, error)
    except BrokerUnavailable as error:
        logger.warning("%s is not mirrored yet; a worker will do it within seconds. %s", what, error)
    except OtherLayout as error:  # during a restart of the workers, see `switch.py`
        logger.info("%s is left to the sweep of the workers. %s", what, error)
    except (BrokerError, ForeignLayout) as error:
        web.open_breaker()
        logger.error("%s is not mirrored. %s", what, error)


def read_entries(schedules: Iterable[Schedule]) -> dict[int, EntryView]:
    """Return what Redis holds of each schedule, by primary key, in one round trip; raises what `web.ask` does."""
    rows = list(schedules)
    views = web.ask(lambda broker: broker.read_views([(chain.format_member(row.pk), row.queue) for row in rows]))
    return {row.pk: view for row, view in zip(rows, views, strict=True)}
