"""Takes snapshots of Redis and the database, within about the time that the caller allows."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections
from django.utils.translation import gettext as _

from ... import conf, ledger
from ...exceptions import BrokerError, BrokerUnavailable
from ...index import Broker
from ...index.connection import DamagedKeys
from ...index.web import ask
from ...ledger.bulk import MissingTables
from ...models import Control, Schedule
from ...recurrence.point import utcnow
from ...text import redact_text
from .. import minutes
from .database_side import compare, count_all, find_unknown, reach_database
from .late import name_late
from .redis_side import read_redis
from .snapshot import BLIND, MOST_COUNTED, MOST_UNKNOWN, Comparison, Problem, RedisView, Snapshot

Answer = TypeVar("Answer")

#: Seconds between two comparisons that differ: enough for a worker to finish its current writes.
AGAIN_SECONDS = 0.5


def look(*, seconds: float) -> Snapshot:
    """Take a full snapshot within about `seconds`, even if a server hangs.

    Raises:
        ImproperlyConfigured: The settings have no Redis alias.
        BrokerUnavailable: This process must not use Redis; see `conf.why_no_redis`.
    """
    config = conf.get_config()
    snapshot = Snapshot(alias=config.redis, prefix=config.prefix)
    deadline = time.monotonic() + seconds
    broker = Broker(timeout_seconds=seconds / 2)
    no_redis = _problem(BrokerUnavailable(_("Redis did not answer in time")), config.redis)
    no_database = _problem(DatabaseError(_("no answer in time")), config.redis)
    redis, database = _ask(partial(read_redis, broker, server=True)), _ask(reach_database)
    snapshot.redis = _answer(snapshot, redis, deadline, no_redis)
    snapshot.database = _answer(snapshot, database, deadline, no_database)
    if snapshot.database is not None:
        counting, loading = _ask(partial(count_all, snapshot.database)), _ask(partial(minutes.read_load, broker))
        holding: Future[Sequence[Control]] = _ask(ledger.held_back)
        naming, waiting = _ask(find_unknown), _ask(partial(name_late, MOST_UNKNOWN))
        summing = _ask(partial(minutes.read_counts, utcnow() - timedelta(hours=1), broker=broker))
        if snapshot.redis is not None:
            text = _("Redis and the database could not be compared in time. Give it more: --timeout SECONDS")
            compared = _ask(partial(_compare, broker, snapshot.redis, deadline))
            snapshot.comparison = _answer(snapshot, compared, deadline, Problem("database_unreachable", text, BLIND))
        snapshot.load = _answer(snapshot, loading, deadline, None)  # queries Redis too, which may hang
        snapshot.held_back = _answer(snapshot, holding, deadline, no_database)
        snapshot.unknown_tasks = _answer(snapshot, naming, deadline, None)
        snapshot.late = _answer(snapshot, waiting, deadline, None)
        snapshot.last_hour = _answer(snapshot, summing, deadline, None)
        _answer(snapshot, counting, deadline, None)  # counts that are not ready stay None
    return snapshot


def look_quickly(*, server: bool = False, used: Mapping[str, Sequence[str]] | None = None) -> Snapshot:
    """Take a snapshot without counts of the database, in the caller's thread and with the limits of a web request.

    With `server`, INFO of Redis is read too. `used` is the result of `ScheduleQuerySet.used`, if known.

    Raises:
        DatabaseError: The database does not answer.
    """
    config = conf.get_config()
    snapshot = Snapshot(alias=config.redis, prefix=config.prefix)
    try:
        snapshot.redis = ask(partial(read_redis, server=server))
        used = used or Schedule.objects.using(ledger.database()).used(MOST_UNKNOWN, "queue", "task")
        snapshot.comparison = ask(partial(compare, most=MOST_COUNTED, queues=used["queue"]))
        snapshot.load = minutes.read_load()
        snapshot.unknown_tasks, snapshot.late = find_unknown(used["task"]), name_late(MOST_UNKNOWN)
        if snapshot.redis.late or snapshot.load.overloaded:  # only then do pauses matter to the caller
            snapshot.held_back = ledger.held_back()
    except BrokerError as error:
        snapshot.blind.append(_problem(error, config.redis))
    return snapshot


def _ask(question: Callable[[], Answer]) -> "Future[Answer]":
    """Run a query in a daemon thread. A late thread is abandoned, so a server that hangs blocks no caller."""
    future: Future[Answer] = Future()

    def ask() -> None:
        try:
            try:
                answer = question()
            finally:
                connections.close_all()
            future.set_result(answer)
        except Exception as error:
            future.set_exception(error)

    Thread(target=ask, name="delayq-status", daemon=True).start()
    return future


def _answer(snapshot: Snapshot, asked: "Future[Answer]", deadline: float, late: Problem | None) -> Answer | None:
    """Return the answer. On failure return None and add the problem to the snapshot: `late` after the deadline."""
    try:
        return asked.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        problem = late
    except (BrokerError, DatabaseError, InterfaceError, MissingTables) as error:
        problem = _problem(error, snapshot.alias)
    if problem is not None and problem.code not in [known.code for known in snapshot.blind]:
        snapshot.blind.append(problem)  # once, although several queries may fail for the same reason
    return None


def _compare(broker: Broker, redis: RedisView, deadline: float) -> Comparison:
    """Compare; if entries differ, compare again and return the smaller difference."""
    first = compare(broker)
    if not first.excess(redis) or time.monotonic() + AGAIN_SECONDS > deadline:
        return first
    time.sleep(AGAIN_SECONDS)  # workers do not signal the end of their writes
    return min(compare(broker), first, key=lambda each: each.excess(redis))


def _problem(error: Exception, alias: str) -> Problem:
    """Return the problem for an error, in one line without credentials."""
    said = redact_text(" ".join(str(error).split()) or type(error).__name__).rstrip(". ?")
    if isinstance(error, DamagedKeys):
        text = _("%(error)s. A running worker deletes it and rebuilds within seconds; start one if none runs.")
        return Problem("redis_unfit", text % {"error": said})
    if isinstance(error, BrokerError):
        text = _("%(error)s. Start Redis, or correct its address: the alias %(alias)s in CACHES.")
        return Problem("redis_unreachable", text % {"error": said, "alias": alias}, BLIND)
    if isinstance(error, MissingTables):
        return Problem("database_unreachable", said, BLIND)
    text = _(
        "The database cannot be used now: %(error)s. Start it, or correct DATABASES; after an upgrade run: manage.py "
        "migrate"
    )
    return Problem("database_unreachable", text % {"error": said}, BLIND)
