"""Looks at Redis and the database, and at one by the other. Never waits much longer than it was told to."""

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

#: Between two looks at what differs: long enough for a worker to finish what it was just writing.
AGAIN_SECONDS = 0.5


def look(*, seconds: float) -> Snapshot:
    """Look at everything, within about so many seconds also where a server hangs.

    Raises:
        ImproperlyConfigured: The settings name no Redis.
        BrokerUnavailable: This process sends Redis nothing; see `conf.why_no_redis`.
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
        snapshot.load = _answer(snapshot, loading, deadline, None)  # asks Redis too, which may hang
        snapshot.held_back = _answer(snapshot, holding, deadline, no_database)
        snapshot.unknown_tasks = _answer(snapshot, naming, deadline, None)
        snapshot.late = _answer(snapshot, waiting, deadline, None)
        snapshot.last_hour = _answer(snapshot, summing, deadline, None)
        _answer(snapshot, counting, deadline, None)  # what is not counted by now stays None
    return snapshot


def look_quickly(*, server: bool = False, used: Mapping[str, Sequence[str]] | None = None) -> Snapshot:
    """Look at what is asked of Redis and of both together, as a web request may: on a short leash, in its own thread.

    With `server` Redis is asked about itself too. `used` is what `ScheduleQuerySet.used` returned, if that is known.

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
        if snapshot.redis.late or snapshot.load.overloaded:  # else nobody asks whether that is what people want
            snapshot.held_back = ledger.held_back()
    except BrokerError as error:
        snapshot.blind.append(_problem(error, config.redis))
    return snapshot


def _ask(question: Callable[[], Answer]) -> "Future[Answer]":
    """Ask in a daemon thread, which is abandoned where the answer is late: a server that hangs holds up nobody."""
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
    """Return the answer; None where there is none, and the snapshot has the problem: `late` if it was not in time."""
    try:
        return asked.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        problem = late
    except (BrokerError, DatabaseError, InterfaceError, MissingTables) as error:
        problem = _problem(error, snapshot.alias)
    if problem is not None and problem.code not in [known.code for known in snapshot.blind]:
        snapshot.blind.append(problem)  # once: two questions may fail for one reason
    return None


def _compare(broker: Broker, redis: RedisView, deadline: float) -> Comparison:
    """Compare; where something differs look again, and believe the smaller difference."""
    first = compare(broker)
    if not first.excess(redis) or time.monotonic() + AGAIN_SECONDS > deadline:
        return first
    time.sleep(AGAIN_SECONDS)  # nothing tells when a worker has finished what it was writing
    return min(compare(broker), first, key=lambda each: each.excess(redis))


def _problem(error: Exception, alias: str) -> Problem:
    """Return what an error of Redis or of the database means, in one line without credentials."""
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
