"""Clocks that a test sets: the server's, as scripts and workers read it, and a process' own. Nothing sleeps.

The server's clock is shifted in the scripts' text by a number that stands in Redis, so that every process that is
prepared by `shift_clocks` sees one and the same server, and a step reaches all of them at once. Leases and waits are
counted by the monotonic clock, which no step touches.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any

from django_delayq.index import Broker, scripts
from django_delayq.ledger import rows
from django_delayq.recurrence import from_ms, point
from django_delayq.worker import calling

#: By this line the scripts read the clock, in ms.
SERVER_LINE = "return tonumber(time[1]) * 1000"


def shift_key(prefix: str) -> str:
    """STRING: ms by which the server's clock is ahead of its real one."""
    return f"simulated-time:{prefix}"


def shift_clocks(replace: Callable[[object, str, Any], object], key: str, wall: Callable[[], timedelta]) -> None:
    """Let this process read the server's clock shifted by the number at `key`, and its own shifted by `wall()`."""
    load, now_ms, clocks_ms = scripts.load, Broker.read_now_ms, Broker.read_clocks_ms

    def shift(broker: Broker) -> int:
        return int(broker.client.get(key) or 0)

    def shifted_load(name: str) -> tuple[str, str]:
        text = load(name)[0]
        assert SERVER_LINE in text, "the scripts read the clock in another way: change SERVER_LINE"
        by = f"return tonumber(redis.call('GET', '{key}') or '0')"
        text = text.replace(SERVER_LINE, f"{by} + tonumber(time[1]) * 1000")
        return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    class Wall(datetime, metaclass=_AlsoPlain):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + wall()

    replace(scripts, "load", shifted_load)
    replace(Broker, "read_now_ms", lambda broker: now_ms(broker) + shift(broker))
    replace(Broker, "read_clocks_ms", lambda broker, places: [at + shift(broker) for at in clocks_ms(broker, places)])
    for module in (point, rows, calling):
        replace(module, "datetime", Wall)


class _AlsoPlain(type):
    """Every datetime is an instance, as where the name means the class itself."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


class SimulatedTime:
    """The clocks of a test's server and of its own process."""

    def __init__(self, replace: Callable[[object, str, Any], object], broker: Broker) -> None:
        self.broker, self.key = broker, shift_key(broker.config.prefix)
        self.wall = timedelta(0)
        shift_clocks(replace, self.key, lambda: self.wall)

    def now(self) -> datetime:
        """Return the server's clock."""
        return from_ms(self.broker.read_now_ms())

    def set(self, instant: datetime) -> None:
        """Set both clocks; they go on from there."""
        self.step_server(instant - self.now())
        self.wall += instant - point.utcnow()

    def step_server(self, step: timedelta) -> None:
        """Step the server's clock only."""
        self.broker.client.incrby(self.key, step // timedelta(milliseconds=1))

    def end(self) -> None:
        """Remove what stands in Redis."""
        self.broker.client.delete(self.key)
