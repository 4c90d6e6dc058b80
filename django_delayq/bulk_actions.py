"""What people order for all schedules that match: noted at once, carried out by the workers, watched and cancelled.

Note [In batches]
An order has the primary keys that matched when it was given: what is made later, or matches only then, is left alone. A
worker locks the order, does the next batch, and notes how far it came, in one transaction: so each schedule is done
once, whoever dies in between, and several workers may take turns. An error of the database or of Redis ends no order,
as it does not show whether it would come again (`worker/recorder.py`, Note [Whose fault]): the next turn tries again,
and other orders go on. What Django itself forbids, such as a deletion of what a row of another table protects, ends
the order; what was done before stays done.
"""

import logging
from array import array
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import lru_cache

from django.apps import apps
from django.db import Error
from django.db.models import ProtectedError, RestrictedError

from . import ledger, orders
from .exceptions import BrokerError
from .fields import utcnow
from .models import BulkAction, Schedule, ScheduleQuerySet
from .models.locks import locked

logger = logging.getLogger("django_delayq.worker")

#: So many schedules are done in one transaction: no more than are mirrored right after it.
BATCH = 500
#: What ended so long ago is forgotten when the next one is ordered.
KEPT = timedelta(days=30)
Name = BulkAction.Name

#: Each does it to a batch, and returns how many of these schedules were still there.
DO: dict[str, Callable[[ScheduleQuerySet, str], int]] = {
    Name.RUN_NOW: lambda schedules, reason: len(orders.run_each_now(schedules)),
    Name.PAUSE: lambda schedules, reason: schedules.update(enabled=False, pause_reason=reason),
    Name.RESUME: lambda schedules, reason: schedules.update(enabled=True, pause_reason=""),
    Name.DELETE: lambda schedules, reason: schedules.delete()[1].get(Schedule._meta.label, 0),
}


def order(name: str, pks: Iterable[int], *, reason: str = "", logged: str, user: object = None) -> BulkAction:
    """Note that this is to be done to these schedules; a worker begins within seconds."""
    chosen = sorted(set(pks))
    bulk = BulkAction.objects.using(ledger.database())
    bulk.filter(finished_at__lt=utcnow() - KEPT).delete()
    return bulk.create(
        name=Name(name).value,
        reason=reason,
        logged=logged[:300],
        user_key="" if user is None else str(getattr(user, "pk", "")),
        user_name="" if user is None else str(user)[:200],
        chosen=BulkAction.pack(chosen),
        total=len(chosen),
    )


def cancel(pk: int) -> bool:
    """Do nothing more of it; what is done stays done. False where it had ended, or is not there."""
    rows = BulkAction.objects.using(ledger.database()).open().filter(pk=pk)
    return bool(rows.update(cancelled=True, finished_at=utcnow()))


def carry_out() -> bool:
    """Do a batch of the oldest order that no other worker is at; say whether there may be more to do at once.

    Raises:
        django.db.Error, BrokerError: Nothing of a batch is done; the next call tries again.
    """
    using = ledger.database()
    rows = BulkAction.objects.using(using).open().defer("chosen")
    failed: Exception | None = None
    for pk in list(rows.values_list("pk", flat=True)):
        try:
            with ledger.writing(using):
                bulk = locked(rows.filter(pk=pk), skip=True).first()
                if bulk is not None:
                    _do_batch(bulk)
                    return True
        except Exception as error:
            if isinstance(error, Error | BrokerError) and not isinstance(error, ProtectedError | RestrictedError):
                failed = failed or error
                continue
            logger.exception("A bulk action is given up: %s", rows.filter(pk=pk).first())
            rows.filter(pk=pk).update(error=f"{type(error).__name__}: {error}", finished_at=utcnow())
            return True
    if failed is not None:
        raise failed
    return False


def _do_batch(bulk: BulkAction) -> None:
    batch = _chosen(bulk.pk, bulk.total)[bulk.done : bulk.done + BATCH]
    schedules = Schedule.objects.using(bulk._state.db).filter(pk__in=list(batch))
    _log(bulk, schedules)
    bulk.changed += DO[bulk.name](schedules, bulk.reason)
    bulk.done += len(batch)
    bulk.started_at = bulk.started_at or utcnow()
    if bulk.done >= bulk.total:
        bulk.finished_at = utcnow()
        _chosen.cache_clear()
    bulk.save(update_fields=["changed", "done", "started_at", "finished_at"])


@lru_cache(maxsize=1)
def _chosen(pk: int, total: int) -> "array[int]":
    return BulkAction.objects.using(ledger.database()).get(pk=pk).unpack()


def _log(bulk: BulkAction, schedules: ScheduleQuerySet) -> None:
    """Write the history of each, as the admin does, where there is an admin and still that user."""
    if not bulk.user_key or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import CHANGE, DELETION, LogEntry
    from django.contrib.auth import get_user_model

    if get_user_model()._base_manager.filter(pk=bulk.user_key).exists():
        flag = DELETION if bulk.name == Name.DELETE else CHANGE
        LogEntry.objects.log_actions(bulk.user_key, schedules.all(), flag, change_message=bulk.logged)
