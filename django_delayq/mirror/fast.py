"""The fast path from a web request: right after the commit, on a short leash. Whatever it misses, the sweeps heal."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from django.core.signals import setting_changed
from django.db import transaction

from .. import chain, conf, ledger
from ..broker import Broker, EntryView, Place
from ..exceptions import BrokerError, BrokerUnavailable, ForeignLayout
from ..fields import utcnow
from ..models import Origin, Run, Schedule, Status
from ..timing import from_ms, to_ms
from .layout import check_layout
from .write import read_wanted, remove_tombstones, sync

logger = logging.getLogger("django_delayq.mirror")

#: A save waits at most this long for Redis, for connecting and for each answer.
TIMEOUT_SECONDS = 0.3
#: After a failure no request tries again for so long.
BREAKER_SECONDS = 5.0
#: More rows than this are left to the workers' sweep, which comes within seconds: a request must not wait for them.
MOST_AT_ONCE = 500

_lock = threading.Lock()
_broker: Broker | None = None
_broken_until = 0.0


class _BreakerOpen(BrokerUnavailable):
    """Redis failed a moment ago; that was logged then."""


def _shared_broker() -> Broker:
    """Return this process' broker with the short timeout.

    Raises:
        BrokerUnavailable: It failed a moment ago; see BREAKER_SECONDS.
    """
    global _broker
    with _lock:
        if time.monotonic() < _broken_until:
            raise _BreakerOpen("Redis did not answer a moment ago; the next try is in a few seconds.")
        if _broker is None:
            _broker = Broker(timeout_seconds=TIMEOUT_SECONDS)
        return _broker


def _open_breaker() -> None:
    global _broken_until
    with _lock:
        _broken_until = time.monotonic() + BREAKER_SECONDS


def forget_broker(**kwargs: object) -> None:
    """Connect anew at the next use, with the breaker closed."""
    global _broker, _broken_until
    if kwargs.get("setting", "DELAYQ") in ("DELAYQ", "CACHES"):
        with _lock:
            if _broker is not None:
                _broker.close()
            _broker, _broken_until = None, 0.0


setting_changed.connect(forget_broker, dispatch_uid="django_delayq.mirror")


def mirror_after_commit(pks: Sequence[int], *, using: str) -> None:
    """Mirror these schedules once the current transaction is committed. Never raises because of Redis.

    Their states learn their next points within the transaction, whether Redis is there or not.
    """
    if conf.get_config().mirror and pks:
        if len(pks) <= MOST_AT_ONCE:
            read_wanted(pks)
        transaction.on_commit(lambda: _try_sync(pks), using=using, robust=True)


def _try_sync(pks: Sequence[int]) -> None:
    if len(pks) <= MOST_AT_ONCE:
        _attempt("An edit", lambda broker: sync(broker, pks))


def _attempt(what: str, write: Callable[[Broker], object]) -> None:
    """Write to Redis if it is there and ours; log what went wrong, once per opening of the breaker. Never raises."""
    try:
        broker = _shared_broker()
        check_layout(broker)
        write(broker)
    except _BreakerOpen as error:
        logger.debug("%s is not mirrored yet: %s", what, error)
    except BrokerUnavailable as error:
        _open_breaker()
        logger.warning("%s is not mirrored yet, the workers will make up for it. %s", what, error)
    except (BrokerError, ForeignLayout) as error:
        _open_breaker()
        logger.error("%s is not mirrored. %s", what, error)


def sweep_after_commit(*, using: str) -> None:
    """Follow deletions once the current transaction is committed. Never raises because of Redis."""
    if conf.get_config().mirror:
        transaction.on_commit(_try_tombstones, using=using, robust=True)


def _try_tombstones() -> None:
    _attempt("A deletion", remove_tombstones)


def read_entries(schedules: Iterable[Schedule]) -> dict[int, EntryView]:
    """Return what Redis holds of each schedule, by primary key, in one round trip.

    Raises:
        BrokerUnavailable: Redis does not answer; nothing is known.
        BrokerError: Redis answered with an error.
    """
    rows = list(schedules)
    broker = _shared_broker()
    try:
        views = broker.views([(chain.member_of(row.pk), row.queue) for row in rows])
    except BrokerUnavailable:
        _open_breaker()
        raise
    return {row.pk: view for row, view in zip(rows, views, strict=True)}


def run_now(schedule: Schedule, *, now: datetime | None = None) -> Run:
    """Order one run of a schedule, also of a paused one. It ignores overlap and `max_runs` and moves no due point.

    The order is a row of the ledger first, so it is not lost where Redis is down: a worker puts it back.
    """
    using = ledger.database()
    moment = from_ms(to_ms(now or utcnow()))
    run = Run(
        schedule_id=schedule.pk,
        schedule_name=schedule.name,
        task=schedule.task,
        queue=schedule.queue,
        generation=schedule.generation,
        origin=Origin.MANUAL,
        apart=True,
        due_at=moment,
        status=Status.QUEUED,
    )
    with transaction.atomic(using=using):
        run.save(using=using, force_insert=True)
        if conf.get_config().mirror:
            transaction.on_commit(lambda: _try_enqueue(run), using=using, robust=True)
    return run


def _try_enqueue(run: Run) -> None:
    _attempt("An order", lambda broker: enqueue_runs(broker, [run]))


def enqueue_runs(broker: Broker, runs: Sequence[Run]) -> int:
    """Put run members that are not there into Redis, one script per place; return how many were added."""
    places: dict[Place, list[tuple[str, int, int, str]]] = {}
    for run in runs:
        member, due_ms = chain.run_member_of(run.pk), to_ms(run.due_at)
        places.setdefault(broker.place_of(member, run.queue), []).append((member, due_ms, due_ms, ""))
    return sum(sum(broker.enqueue(place, members)) for place, members in places.items())
