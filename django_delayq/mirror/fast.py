"""The fast path from a web request: right after the commit, on a short leash. Whatever it misses, the sweeps heal."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from django.core.signals import setting_changed
from django.db import transaction

from .. import chain, conf, failpoints
from ..broker import Broker, EntryView, Shard
from ..exceptions import BrokerError, BrokerUnavailable, ForeignLayout
from ..models import Origin, Run, Schedule
from ..rows import AnyRun
from ..timing import to_ms
from .layout import check_layout
from .read import read_wanted
from .write import PAGE, remove_tombstones, sync

logger = logging.getLogger("django_delayq.mirror")
Answer = TypeVar("Answer")

#: A save waits at most this long for Redis, for connecting and for each answer.
TIMEOUT_SECONDS = 0.3
#: After a failure no request tries again for so long.
BREAKER_SECONDS = 5.0
#: More rows than this are left to the workers' sweep, which comes within seconds: a request must not wait for them.
MOST_AT_ONCE = 500

_lock = threading.Lock()
_broker: Broker | None = None
_broken_until = 0.0


class _NotAsked(BrokerUnavailable):
    """Redis failed a moment ago, which was logged then; or it is sent nothing."""


def _shared_broker() -> Broker:
    """Return this process' broker with the short timeout.

    Raises:
        BrokerUnavailable: It failed a moment ago, see BREAKER_SECONDS; or nothing is sent, see `conf.why_no_redis`.
    """
    global _broker
    if not conf.get_config().mirror:
        raise _NotAsked(f"Redis is not asked. {conf.why_no_redis()}.")
    with _lock:
        if time.monotonic() < _broken_until:
            raise _NotAsked("Redis did not answer a moment ago; the next try is in a few seconds.")
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
    if conf.mirrors() and pks:
        if len(pks) <= MOST_AT_ONCE:
            read_wanted(pks)
        if conf.get_config().mirror:
            transaction.on_commit(lambda: _try_sync(pks), using=using, robust=True)


def _try_sync(pks: Sequence[int]) -> None:
    if len(pks) <= MOST_AT_ONCE:
        _attempt("An edit", lambda broker: sync(broker, pks))


def _attempt(what: str, write: Callable[[Broker], object]) -> bool:
    """Write to Redis if it is there and ours; say whether it was written. Never raises.

    What went wrong is logged once per opening of the breaker.
    """
    failpoints.reach("before_mirror")
    try:
        broker = _shared_broker()
        check_layout(broker, claim=False)  # only workers claim: a web process may be the first after a flush
        write(broker)
        return True
    except _NotAsked as error:
        logger.debug("%s is not mirrored yet: %s", what, error)
    except BrokerUnavailable as error:
        _open_breaker()
        logger.warning("%s is not mirrored yet, the workers will make up for it. %s", what, error)
    except (BrokerError, ForeignLayout) as error:
        _open_breaker()
        logger.error("%s is not mirrored. %s", what, error)
    return False


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
    views = ask(lambda broker: broker.views([(chain.member_of(row.pk), row.queue) for row in rows]))
    return {row.pk: view for row, view in zip(rows, views, strict=True)}


def ask(read: Callable[[Broker], Answer]) -> Answer:
    """Read from Redis as a web request may: with short timeouts, and not at all where it failed a moment ago.

    Raises:
        BrokerUnavailable: Redis does not answer; nothing is known.
        BrokerError: Redis answered with an error.
    """
    broker = _shared_broker()
    try:
        return read(broker)
    except BrokerUnavailable:
        _open_breaker()
        raise


def enqueue_after_commit(runs: Sequence[Run], *, using: str) -> None:
    """Put ordered runs into Redis once the current transaction is committed. Never raises because of Redis."""
    if conf.get_config().mirror and runs:
        transaction.on_commit(lambda: _try_enqueue(runs), using=using, robust=True)


def _try_enqueue(runs: Sequence[Run]) -> None:
    _attempt("An order", lambda broker: enqueue_runs(broker, runs))


def enqueue_runs(broker: Broker, runs: Sequence[AnyRun]) -> int:
    """Put run members that are not there into Redis, a page per script; return how many were added.

    A backfilled point waits in line from its order on: by its due point it would push before everything that is due.
    """
    shards: dict[Shard, list[tuple[str, int, int]]] = {}
    now_ms = broker.now_ms() if any(run.origin != Origin.DUE for run in runs) else 0
    for run in runs:
        member, due_ms = chain.run_member_of(run.pk), to_ms(run.due_at)
        wake_ms = to_ms(run.created_at) if run.origin == Origin.BACKFILL else due_ms
        if run.origin != Origin.DUE:  # an order starts at once, also where its sender's clock is ahead
            wake_ms = min(wake_ms, now_ms)
        shards.setdefault(broker.shard_of(member, run.queue), []).append((member, due_ms, wake_ms))
    added = 0
    for shard, members in shards.items():
        for at in range(0, len(members), PAGE):
            added += sum(broker.enqueue(shard, members[at : at + PAGE]))
    return added
