"""Looks at Redis and the database, and at one by the other. Never waits much longer than it was told to."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from django.db import DatabaseError, InterfaceError
from django.utils.translation import gettext as _

from .. import conf, ledger, mirror
from ..broker import Broker
from ..exceptions import BrokerError, DamagedKeys, MissingTables
from ..redaction import redact_text
from .asking import Asked
from .comparing import compare
from .database_side import count_all, reach_database
from .judge import excess
from .redis_side import read_redis
from .snapshot import BLIND, Comparison, Problem, RedisView, Snapshot

Answer = TypeVar("Answer")
Explain = Callable[[Exception], Problem]

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
    redis, database = Asked(partial(read_redis, broker, server=True)), Asked(reach_database)
    snapshot.redis = _answer(snapshot, redis, deadline, partial(_no_redis, snapshot.alias))
    snapshot.database = _answer(snapshot, database, deadline, _no_database)
    if snapshot.database is not None:
        counting, loading = Asked(partial(count_all, snapshot.database)), Asked(ledger.read_load)
        if snapshot.redis is not None:
            question = partial(_compare, broker, snapshot.redis, deadline)
            snapshot.comparison = _answer(snapshot, Asked(question), deadline, partial(_not_compared, snapshot.alias))
        snapshot.load = _answer(snapshot, loading, deadline, _no_database)
        try:
            counting.get(deadline)
        except TimeoutError:  # what was not counted by now is not told
            pass
        except (DatabaseError, InterfaceError) as error:
            _note(snapshot, _no_database(error))
    return snapshot


def look_quickly() -> Snapshot:
    """Look at what is asked of Redis and of both together, as a web request may: on a short leash, in its own thread.

    Raises:
        DatabaseError: The database does not answer.
    """
    config = conf.get_config()
    snapshot = Snapshot(alias=config.redis, prefix=config.prefix)
    try:
        snapshot.redis = mirror.ask(partial(read_redis, server=False))
        snapshot.comparison = mirror.ask(compare)
        snapshot.load = ledger.read_load()
    except BrokerError as error:
        _note(snapshot, _no_redis(config.redis, error))
    return snapshot


def _answer(snapshot: Snapshot, asked: Asked[Answer], deadline: float, explain: Explain) -> Answer | None:
    try:
        return asked.get(deadline)
    except (BrokerError, DatabaseError, InterfaceError, MissingTables, TimeoutError) as error:
        _note(snapshot, explain(error))
        return None


def _note(snapshot: Snapshot, problem: Problem) -> None:
    if problem.code not in [known.code for known in snapshot.blind]:  # two questions may fail for one reason
        snapshot.blind.append(problem)


def _compare(broker: Broker, redis: RedisView, deadline: float) -> Comparison:
    """Compare; where something differs look again, and believe the smaller difference."""
    first = compare(broker)
    if not excess(first, redis) or time.monotonic() + AGAIN_SECONDS > deadline:
        return first
    time.sleep(AGAIN_SECONDS)  # nothing tells when a worker has finished what it was writing
    return min(compare(broker), first, key=partial(excess, redis=redis))


def _no_redis(alias: str, error: Exception) -> Problem:
    if isinstance(error, DamagedKeys):
        text = _("%(error)s. A running worker deletes it and rebuilds within seconds; start one if none runs.")
        return Problem("damaged_keys", text % {"error": _plain(error)})
    text = _("%(error)s. Start Redis, or correct its address: the alias %(alias)s in CACHES.")
    said = _("Redis did not answer in time") if isinstance(error, TimeoutError) else _plain(error)
    return Problem("redis_unreachable", text % {"error": said, "alias": alias}, BLIND)


def _no_database(error: Exception) -> Problem:
    if isinstance(error, MissingTables):
        return Problem("tables_missing", _plain(error), BLIND)
    text = _(
        "The database cannot be used now: %(error)s. Start it, or correct DATABASES; after an upgrade run: manage.py "
        "migrate"
    )
    said = _("no answer in time") if isinstance(error, TimeoutError) else _plain(error)
    return Problem("database_unreachable", text % {"error": said}, BLIND)


def _not_compared(alias: str, error: Exception) -> Problem:
    if isinstance(error, BrokerError):
        return _no_redis(alias, error)
    if isinstance(error, TimeoutError):
        text = _("Redis and the database could not be compared in time. Give it more: --timeout SECONDS")
        return Problem("not_compared", text, BLIND)
    return _no_database(error)


def _plain(error: Exception) -> str:
    """Return the message in one line, without credentials and without its last stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return redact_text(text).rstrip(". ?")
