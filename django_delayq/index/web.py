"""Redis for web requests: short timeouts, and no attempts for a few seconds after a failure."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.core.signals import setting_changed

from .. import conf
from ..exceptions import BrokerUnavailable
from .broker import Broker

Answer = TypeVar("Answer")

#: Maximum seconds that a request waits for Redis: to connect, and for each reply.
TIMEOUT_SECONDS = 0.3
#: Seconds without attempts after a failure.
BREAKER_SECONDS = 5.0

_lock = threading.Lock()
_broker: Broker | None = None
_broken_until = 0.0


class RedisSkipped(BrokerUnavailable):
    """Redis failed less than BREAKER_SECONDS ago, which was logged, or is not used at all."""


def ask(what: Callable[[Broker], Answer]) -> Answer:
    """Call `what` with this process' broker; raises `RedisSkipped`, and what `Broker` does."""
    global _broker
    if not conf.get_config().mirror:
        raise RedisSkipped(f"Redis is not asked. {conf.explain_no_redis()}.")
    with _lock:
        if time.monotonic() < _broken_until:
            raise RedisSkipped("Redis did not answer a moment ago; the next try is in a few seconds.")
        broker = _broker = _broker or Broker(timeout_seconds=TIMEOUT_SECONDS)
    try:
        return what(broker)
    except BrokerUnavailable:
        open_breaker()
        raise


def open_breaker() -> None:
    global _broken_until
    with _lock:
        _broken_until = time.monotonic() + BREAKER_SECONDS


def forget_broker(**kwargs: object) -> None:
    """Reconnect at the next use, with the breaker closed."""
    global _broker, _broken_until
    if kwargs.get("setting", "DELAYQ") in ("DELAYQ", "CACHES"):
        with _lock:
            if _broker is not None:
                _broker.close()
            _broker, _broken_until = None, 0.0


setting_changed.connect(forget_broker, dispatch_uid="django_delayq.index.web")
