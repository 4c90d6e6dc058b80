"""Mirrors from web requests: after the commit, with short timeouts. The sweeps make up for failures."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import connections, transaction

from .. import conf
from ..exceptions import BrokerError, BrokerUnavailable
from ..index import Broker, EntryView, web
from ..ledger import chain
from ..ledger.rows import AnyRun
from ..models import Schedule
from .layout import ForeignLayout, OtherLayout, check_layout
from .read import read_wanted
from .runs import move_run, put_runs
from .write import remove_tombstones, sync

logger = logging.getLogger("django_delayq.sync")

#: Maximum schedules that a request mirrors: larger changes are left to the workers' sweep, within seconds.
MOST_AT_ONCE = 500
#: Interval at which an enqueuing process checks that the prefix is still this database's, in seconds.
CHECK_SECONDS = 1.0
#: The broker that was checked last, and when, in monotonic seconds.
_checked: tuple[object, float] = None, 0.0


def mirror_after_commit(pks: Sequence[int], *, using: str) -> None:
    """Mirror these schedules after the current transaction commits. Never raises because of Redis.

    Their states get the next points within the transaction, even if Redis is unavailable.
    """
    if pks and len(pks) <= MOST_AT_ONCE and conf.mirrors():
        read_wanted(pks)
        _after_commit("An edit", lambda broker: sync(broker, pks), using)


def sweep_after_commit(count: int, *, using: str) -> None:
    """Mirror this many deletions after the current transaction commits. Never raises because of Redis."""
    if count <= MOST_AT_ONCE:
        _after_commit("A deletion", remove_tombstones, using)


def put_after_commit(runs: Sequence[AnyRun], *, using: str, then: Callable[[], object] | None = None) -> None:
    """Put rows into Redis after the transaction commits, then call `then`. Never raises because of Redis.

    The rows of one transaction or savepoint are put with one script per shard.
    """
    connection: Any = connections[using]
    hook = _hook_of(connection) if connection.in_atomic_block and conf.get_config().mirror else None
    if hook is None:
        hook = _Put()
        hook.add(runs, then)
        connection.on_commit(hook.carry_out, robust=True)
        if connection.in_atomic_block:
            connection._delayq_put = len(connection.run_on_commit) - 1, frozenset(connection.savepoint_ids), hook
    else:
        hook.add(runs, then)


class _Put:
    """The rows that one transaction puts."""

    def __init__(self) -> None:
        self.runs: list[AnyRun] = []
        self.calls: list[Callable[[], object]] = []

    def add(self, runs: Sequence[AnyRun], then: Callable[[], object] | None) -> None:
        self.runs += runs
        if then is not None:
            self.calls.append(then)

    def carry_out(self) -> None:
        put_now(self.runs)
        for call in self.calls:
            call()


def _hook_of(connection: Any) -> _Put | None:
    """Return the pending hook of the same savepoint; None if there is none, or it was rolled back.

    Also None in the transaction of a `TestCase`, which keeps hooks that were called; `captureOnCommitCallbacks` sees
    new ones only.
    """
    if getattr(connection.atomic_blocks[-1], "_from_testcase", False):
        return None
    at, savepoints, hook = getattr(connection, "_delayq_put", (-1, None, None))
    hooks = connection.run_on_commit
    stands = (
        0 <= at < len(hooks)
        and getattr(hooks[at][1], "__self__", None) is hook
        and savepoints == frozenset(connection.savepoint_ids)
    )
    return hook if stands else None


def follow_after_commit(write: Callable[[Broker], object], *, using: str) -> None:
    """Write the change of a row to Redis after the transaction commits. Never raises because of Redis."""
    _after_commit("A change of a job", write, using)


def move_now(run: AnyRun, when: datetime) -> bool:
    """Let a waiting row come due at another time; return False if a worker has it.

    Raises:
        BrokerUnavailable: Redis does not answer; the result is unknown.
        ForeignLayout: The index is another database's, or is being rebuilt with another layout.
    """

    def move(broker: Broker) -> bool:
        check_layout(broker, claim=False)
        return move_run(broker, run, when)

    return web.ask(move)


def put_now(runs: Sequence[AnyRun]) -> None:
    """Put committed rows into Redis. Never raises because of Redis: a sweep puts what is missed."""
    if conf.get_config().mirror:
        _attempt("An order or a job", lambda broker: put_runs(broker, runs), seldom=True)


def _after_commit(what: str, write: Callable[[Broker], object], using: str) -> None:
    if conf.get_config().mirror:
        transaction.on_commit(lambda: _attempt(what, write), using=using, robust=True)


def _attempt(what: str, write: Callable[[Broker], object], *, seldom: bool = False) -> None:
    """Write to Redis if it is available and this database's. Errors are logged once per opening of the breaker.

    `seldom`: check the owner only once in CHECK_SECONDS, so that a job costs one script.
    """

    def checked(broker: Broker) -> None:
        global _checked
        now = time.monotonic()
        if not seldom or _checked[0] is not broker or now >= _checked[1] + CHECK_SECONDS:
            check_layout(broker, claim=False)  # only workers claim: a web process may be the first after a flush
            _checked = broker, now
        write(broker)

    try:
        web.ask(checked)
    except web.NotAsked as error:
        logger.debug("%s is not mirrored yet: %s", what, error)
    except BrokerUnavailable as error:
        logger.warning("%s is not mirrored yet, the workers will make up for it. %s", what, error)
    except OtherLayout as error:  # during a restart of the workers, see `switch.py`
        logger.info("%s is left to the sweep of the workers. %s", what, error)
    except (BrokerError, ForeignLayout) as error:
        web.open_breaker()
        logger.error("%s is not mirrored. %s", what, error)


def read_entries(schedules: Iterable[Schedule]) -> dict[int, EntryView]:
    """Return what Redis holds of each schedule, by primary key, in one round trip.

    Raises:
        BrokerUnavailable: Redis does not answer.
        BrokerError: Redis answered with an error.
    """
    rows = list(schedules)
    views = web.ask(lambda broker: broker.views([(chain.member_of(row.pk), row.queue) for row in rows]))
    return {row.pk: view for row, view in zip(rows, views, strict=True)}
