"""Takes snapshots of Redis and the database, judged once for pages, metrics, alerts and commands. Changes nothing."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Thread

from django.db import DatabaseError, connections
from django.utils.translation import gettext as _

from .. import conf, ledger
from ..exceptions import BrokerUnavailable
from ..index import Broker
from ..index.web import ask
from ..models import Control
from ..recurrence.point import utcnow
from ..sync.pruning import read_last
from . import database_side as database
from .database_side import Comparison
from .minutes import get_load_start, read_rows, sum_load
from .problems import MAX_WAIT_SECONDS, judge
from .redis_side import read_redis
from .snapshot import BLIND, Problem, Snapshot, explain_failure

#: Seconds from a comparison that finds differences to the next: enough for a worker to finish its current writes.
AGAIN_SECONDS = 0.5


def take_snapshot(*, used: Mapping[str, Sequence[str]] | None = None, briefly: bool = False) -> Snapshot:
    """Take a snapshot in the caller's thread, with the limits of a web request; `used` as from `read_used`, if known.

    `briefly` leaves out the failed jobs, and reads only the minutes of the load, not the last hour.
    """
    snapshot = Snapshot()
    used = used or snapshot.attempt(database.read_used) or {"queue": (), "task": ()}
    if conf.get_config().mirror:
        snapshot.redis = snapshot.attempt(lambda: ask(read_redis))
    if snapshot.redis is not None:
        compare = partial(database.compare, queues=used["queue"], most=database.MOST_COUNTED)
        snapshot.comparison = snapshot.attempt(lambda: ask(compare))
    _read_database(snapshot, used["task"], database.MOST_SHOWN, names=0)
    _read_minutes(snapshot, briefly=briefly)
    if not briefly:
        snapshot.failed_jobs = snapshot.attempt(database.count_failed_jobs)
    snapshot.problems = judge(snapshot)
    return snapshot


def take_snapshot_within(seconds: float, *, max_wait: float = MAX_WAIT_SECONDS) -> Snapshot:
    """Take a full snapshot within about `seconds`, even if a server hangs; `max_wait` as in `judge`.

    Raises ImproperlyConfigured without a Redis alias, BrokerUnavailable if this process must not use Redis.
    """
    snapshot, deadline = Snapshot(), time.monotonic() + seconds
    broker = Broker(timeout_seconds=seconds / 2)
    sides = [
        Thread(target=_ask_in_thread, args=(question, snapshot, broker, deadline), name="delayq-status", daemon=True)
        for question in (_read_redis_in_full, _read_database_in_full)
    ]
    for side in sides:
        side.start()
    for side in sides:
        side.join(max(0.0, deadline - time.monotonic()))
    snapshot = replace(snapshot, blind=dict(snapshot.blind))  # a late thread is abandoned, and writes to the other one
    if snapshot.redis is None and "redis_unfit" not in snapshot.blind:
        snapshot.note(explain_failure(BrokerUnavailable(_("Redis did not answer in time"))))
    if not snapshot.vendor:
        snapshot.note(explain_failure(DatabaseError(_("no answer in time"))))
    elif snapshot.redis is not None and snapshot.comparison is None:
        text = _("Redis and the database could not be compared in time. Increase --timeout SECONDS.")
        snapshot.note(Problem("database_unreachable", text, BLIND))
    snapshot.problems = judge(snapshot, max_wait=max_wait)
    return snapshot


def _ask_in_thread(question: Callable[..., None], *args: object) -> None:
    try:
        question(*args)
    finally:
        connections.close_all()


def _read_redis_in_full(snapshot: Snapshot, broker: Broker, deadline: float) -> None:
    redis = snapshot.redis = snapshot.attempt(lambda: read_redis(broker))
    if redis is None:
        return
    snapshot.pruned = snapshot.attempt(lambda: read_last(broker))

    def compare() -> Comparison:
        return database.compare(broker, database.read_used()["queue"])

    first = snapshot.attempt(compare)
    if first is not None and first.count_excess(redis) and time.monotonic() + AGAIN_SECONDS < deadline:
        time.sleep(AGAIN_SECONDS)  # workers do not signal the end of their writes
        again = snapshot.attempt(compare)
        first = min(again or first, first, key=lambda each: each.count_excess(redis))
    snapshot.comparison = first


def _read_database_in_full(snapshot: Snapshot, broker: Broker, deadline: float) -> None:
    def reach() -> str:
        ledger.check_tables()
        return connections[ledger.get_database()].vendor

    snapshot.vendor = snapshot.attempt(reach) or ""
    if snapshot.vendor:
        used = snapshot.attempt(database.read_used) or {"task": []}
        _read_database(snapshot, used["task"], database.MOST_COUNTED, names=database.NAMES_SHOWN)
        snapshot.refused = snapshot.attempt(database.count_refused)
        snapshot.open_runs = snapshot.attempt(database.count_open_runs)
        snapshot.failed_jobs = snapshot.attempt(database.count_failed_jobs)
        _read_minutes(snapshot, broker)


def _read_database(snapshot: Snapshot, tasks: Sequence[str], most: int, *, names: int) -> None:
    snapshot.held_back = snapshot.attempt(lambda: list(Control.objects.using(ledger.get_database()).in_force()))
    snapshot.unknown_tasks = snapshot.attempt(lambda: database.count_unknown(tasks))
    snapshot.late = snapshot.attempt(database.count_late)
    snapshot.states = snapshot.attempt(lambda: database.count_states(most, names))


def _read_minutes(snapshot: Snapshot, broker: Broker | None = None, *, briefly: bool = False) -> None:
    now = utcnow()
    since = get_load_start(now) if briefly else now - timedelta(hours=1)
    rows = snapshot.rows = snapshot.attempt(lambda: read_rows(since, broker=broker))
    snapshot.load = None if rows is None else sum_load(rows, now)
