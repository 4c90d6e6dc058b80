"""The faults, each one function: it begins the fault, and tells the arena when and how it ends."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from django.db import connection

from django_delayq.actions import run_now
from django_delayq.index.scripts import NAMES
from django_delayq.models import Schedule
from tests.faults.harness import database

from .arena import Arena


def kill_worker(arena: Arena) -> None:
    """kill -9 of a worker."""
    if victims := arena.mortal():
        arena.note("kill -9 worker")
        arena.chance.choice(victims).kill()


def drain_worker(arena: Arena) -> None:
    """SIGTERM to a worker."""
    if victims := arena.mortal():
        arena.note("SIGTERM worker")
        arena.chance.choice(victims).term()


def stop_worker(arena: Arena) -> None:
    """SIGSTOP for longer than the lease, then SIGCONT."""
    victim = arena.chance.choice(arena.fleet.workers)
    if victim.alive and not victim.stopped():
        event, seconds = arena.note("SIGSTOP worker"), arena.lease_seconds * arena.chance.uniform(1.2, 2)
        victim.stop()
        # It may hold the database's lock, for which the arena itself waits then: it has to go on without it.
        timer = threading.Timer(seconds, lambda: victim.alive and victim.resume())
        timer.daemon = True
        timer.start()

        def go_on() -> None:
            timer.cancel()
            if victim.alive:
                victim.resume()

        arena.later(seconds, event, go_on)


def flush(arena: Arena) -> None:
    """FLUSHALL."""
    if arena.redis_up:
        arena.note("FLUSHALL")
        arena.server.flush()


def forget_scripts(arena: Arena) -> None:
    """SCRIPT FLUSH."""
    if arena.redis_up:
        arena.note("SCRIPT FLUSH")
        with arena.server.broker() as broker:
            broker.client.script_flush()


def kill_redis(arena: Arena) -> None:
    """kill -9 of Redis, and a start with its append-only file."""
    if arena.redis_up:
        event = arena.note("kill -9 Redis")
        arena.redis_up = False
        arena.server.kill()

        def start() -> None:
            arena.server.start()
            arena.redis_up = True

        arena.later(arena.chance.uniform(0, 4), event, start)


def cut(arena: Arena) -> None:
    """Reset all connections of half the workers."""
    arena.note("connections cut")
    arena.chance.choice(arena.proxies).cut()


def half_close(arena: Arena) -> None:
    """Half-close all connections of half the workers."""
    arena.note("half-closed")
    arena.chance.choice(arena.proxies).half_close()


def lose_replies(arena: Arena) -> None:
    """Lose some replies to some script, by a reset or by silence."""
    event = arena.note("replies lost")
    proxy, silent = arena.chance.choice(arena.proxies), arena.chance.random() < 0.3
    proxy.lose(arena.chance.choice(NAMES), count=arena.chance.randint(1, 3), silent=silent)
    arena.later(6, event, proxy.calm)


def delay(arena: Arena) -> None:
    """Hold up every request of half the workers."""
    event, proxy = arena.note("replies delayed"), arena.chance.choice(arena.proxies)
    proxy.delay_seconds = arena.chance.uniform(0.05, 0.5)
    arena.later(arena.chance.uniform(1, 4), event, proxy.calm)


def silence(arena: Arena) -> None:
    """No byte passes between half the workers and Redis, for a moment or for longer than the lease."""
    event, proxy = arena.note("black hole"), arena.chance.choice(arena.proxies)
    proxy.freeze()
    arena.later(arena.chance.uniform(0.5, 1.5 * arena.lease_seconds), event, proxy.thaw)


def refuse(arena: Arena) -> None:
    """Half the workers find nobody at Redis' address."""
    event, proxy = arena.note("refused"), arena.chance.choice(arena.proxies)
    if proxy.listening:
        proxy.refuse()
        arena.later(arena.chance.uniform(0.5, 1.5 * arena.lease_seconds), event, proxy.accept)


def lock_database(arena: Arena) -> None:
    """Nobody can write into the database."""
    _for_a_while(arena, "database locked", database.locked)


def lock_rows(arena: Arena) -> None:
    """Somebody's transaction has locked a third of the schedules, and their states."""
    if connection.vendor == "postgresql":
        _for_a_while(arena, "rows locked", lambda: database.rows_locked(3))


def only_read(arena: Arena) -> None:
    """The database can be read, and refuses what is written."""
    if connection.vendor == "postgresql":
        _for_a_while(arena, "database read-only", lambda: database.told("default_transaction_read_only", "on"))


def _for_a_while(arena: Arena, kind: str, trouble: Callable[[], AbstractContextManager[None]]) -> None:
    if arena.locked:
        return
    event, lock = arena.note(kind), ExitStack()
    lock.enter_context(trouble())
    arena.locked = True

    def unlock() -> None:
        lock.close()
        arena.locked = False

    arena.later(arena.chance.uniform(0.5, 5), event, unlock)


def crowd(arena: Arena) -> None:
    """More at once than the workers can do: each schedule is run now."""
    if not arena.locked:
        arena.note("crowd")
        for row in Schedule.objects.all():
            run_now(row)


Fault = Callable[[Arena], None]
#: Every fault, those that end a worker or Redis more often than the gentle ones.
ALL: tuple[Fault, ...] = (
    kill_worker, kill_worker, kill_worker, drain_worker, drain_worker, stop_worker, stop_worker, flush, forget_scripts,
    kill_redis, kill_redis, cut, half_close, lose_replies, lose_replies, delay, silence, refuse, lock_database,
    lock_rows, only_read, crowd,
)  # fmt: skip
