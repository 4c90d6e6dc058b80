"""The fast path from a web request: right after the commit, on a short leash. Whatever it misses, the sweeps heal."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from django.db import DatabaseError, transaction

from .. import chain, conf, failpoints, ledger, tracing
from ..broker import Broker, EntryView, NewJob, note_trace, web
from ..exceptions import BrokerError, BrokerUnavailable, ForeignLayout, OtherLayout
from ..models import Run, Schedule
from .durable import put_jobs
from .layout import check_layout
from .pages import PAGE
from .read import read_wanted
from .runs import enqueue_runs
from .write import remove_tombstones, sync

logger = logging.getLogger("django_delayq.mirror")

#: More rows than this are left to the workers' sweep, which comes within seconds: a request must not wait for them.
MOST_AT_ONCE = 500


def mirror_after_commit(pks: Sequence[int], *, using: str) -> None:
    """Mirror these schedules once the current transaction is committed. Never raises because of Redis.

    Their states learn their next points within the transaction, whether Redis is there or not.
    """
    if pks and len(pks) <= MOST_AT_ONCE and conf.mirrors():
        members = [(item.member, item.queue) for item in read_wanted(pks)]
        _after_commit("An edit", _traced(members, lambda broker: sync(broker, pks)), using)


def sweep_after_commit(count: int, *, using: str) -> None:
    """Follow so many deletions once the current transaction is committed. Never raises because of Redis."""
    if count <= MOST_AT_ONCE:
        _after_commit("A deletion", remove_tombstones, using)


def enqueue_after_commit(runs: Sequence[Run], *, using: str) -> None:
    """Put ordered runs into Redis once the current transaction is committed. Never raises because of Redis."""
    if runs:
        members = [(chain.run_member_of(run.pk), run.queue) for run in runs]
        _after_commit("An order", _traced(members, lambda broker: enqueue_runs(broker, runs)), using)


def put_after_commit(jobs: Sequence[tuple[str, NewJob]], then: Callable[[], object], *, using: str) -> None:
    """Put new jobs into Redis once the current transaction is committed, then call `then`. Never raises for Redis."""
    transaction.on_commit(lambda: _put(jobs, then), using=using, robust=True)


def put_now(jobs: Sequence[tuple[str, NewJob]]) -> None:
    """Put jobs into Redis whose rows are committed. Never raises for Redis: what is missed, a sweep puts there."""
    _put(jobs, lambda: None)


def _put(jobs: Sequence[tuple[str, NewJob]], then: Callable[[], object]) -> None:
    def put(broker: Broker) -> None:
        for at in range(0, len(jobs), PAGE):
            part = jobs[at : at + PAGE]
            put_jobs(broker, part)
            if len(part) > 1:
                with suppress(DatabaseError):  # then a sweep does it
                    ledger.note_mirrored([job.member for _, job in part])

    if conf.get_config().mirror:
        _attempt("A job", put)
    then()


def _after_commit(what: str, write: Callable[[Broker], object], using: str) -> None:
    if conf.get_config().mirror:
        transaction.on_commit(lambda: _attempt(what, write), using=using, robust=True)


def _traced(members: Sequence[tuple[str, str]], write: Callable[[Broker], object]) -> Callable[[Broker], object]:
    """Have the trace of this moment noted for these (member, queue) before they are written: they may start at once."""
    carried = tracing.carrier()
    if not carried:
        return write

    def note_and_write(broker: Broker) -> None:
        with suppress(BrokerError):  # what matters is told by the next one
            note_trace(broker, members, carried)
        write(broker)

    return note_and_write


def _attempt(what: str, write: Callable[[Broker], object]) -> None:
    """Write to Redis if it is there and ours. What went wrong is logged once per opening of the breaker."""

    def checked(broker: Broker) -> None:
        check_layout(broker, claim=False)  # only workers claim: a web process may be the first after a flush
        write(broker)

    failpoints.reach("before_mirror")
    try:
        web.ask(checked)
    except web.NotAsked as error:
        logger.debug("%s is not mirrored yet: %s", what, error)
    except BrokerUnavailable as error:
        logger.warning("%s is not mirrored yet, the workers will make up for it. %s", what, error)
    except OtherLayout as error:  # while workers are restarted, see `switch.py`, Note [Web processes]
        logger.info("%s is left to the sweep of the workers. %s", what, error)
    except (BrokerError, ForeignLayout) as error:
        web.open_breaker()
        logger.error("%s is not mirrored. %s", what, error)


def read_entries(schedules: Iterable[Schedule]) -> dict[int, EntryView]:
    """Return what Redis holds of each schedule, by primary key, in one round trip.

    Raises:
        BrokerUnavailable: Redis does not answer; nothing is known.
        BrokerError: Redis answered with an error.
    """
    rows = list(schedules)
    views = web.ask(lambda broker: broker.views([(chain.member_of(row.pk), row.queue) for row in rows]))
    return {row.pk: view for row, view in zip(rows, views, strict=True)}
