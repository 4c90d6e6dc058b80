"""Tells a service such as healthchecks.io when an execution begins and ends, where a schedule has an address for that.

Best effort: one thread of the process sends, from a list that ends at MOST. What does not fit, what its host does not
take within its tries, and what is still here when the process is killed, is dropped. No execution ever waits for it.
The address gets a POST: with `/start` behind it, as it is, or with `/fail`, and `rid`, the same for one run.
"""

import logging
import os
import queue
import threading
import time
import uuid
from typing import NamedTuple
from urllib.parse import urlsplit

from .. import conf
from ..calls import tracing
from ..conf.alerts import find_refusal
from .outgoing import DeliveryFailed, post

logger = logging.getLogger("django_delayq.worker")

MOST = 1000
TIMEOUT_SECONDS = 5.0
#: Waits before the second and the third try; that it has begun is tried once.
PAUSES = (1.0, 3.0)
#: A host that took nothing is left out for so long, so that the others get theirs.
REST_SECONDS = 30.0
#: A process that ends gives what is here so long.
FLUSH_SECONDS = 5.0
MOST_BODY = 10_000
_NAMESPACE = uuid.UUID("5f6c1d0e-8a63-4c7b-9a50-2d1c64c3b4f7")


class Ping(NamedTuple):
    """One request."""

    url: str
    rid: str
    what: str
    body: bytes


class _Pinger:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.waiting: queue.Queue[Ping] = queue.Queue(MOST)
        self.resting: dict[str, float] = {}
        self.ending = threading.Event()
        threading.Thread(target=self._run, name="delayq-pings", daemon=True).start()

    @tracing.quiet()
    def _run(self) -> None:
        while True:
            ping = self.waiting.get()
            try:
                self._send(ping)
            except Exception:
                logger.exception("A ping could not be sent")
            finally:
                self.waiting.task_done()

    def _send(self, ping: Ping) -> None:
        host = urlsplit(ping.url).netloc
        alerts = conf.get_config().alerts
        if alerts is None or self.resting.get(host, 0.0) > time.monotonic():
            return
        for pause in (*(() if ping.what == "/start" else PAUSES), None):
            try:
                url = f"{ping.url.rstrip('/')}{ping.what}?rid={ping.rid}"
                headers = {"content-type": "text/plain; charset=utf-8", "user-agent": "django-delayq"}
                post(url, ping.body, headers, hosts=alerts.hosts, timeout_seconds=TIMEOUT_SECONDS)
                return
            except DeliveryFailed as error:
                if pause is None or self.ending.is_set():
                    self.resting[host] = time.monotonic() + REST_SECONDS
                    logger.warning("A ping was not taken: %s", error)
                    return
            self.ending.wait(pause)


_pinger: _Pinger | None = None
_lock = threading.Lock()


def ping(url: str, what: str, key: str, body: str = "") -> None:
    """Have a request be sent, and return at once: `what` is `/start`, '' or `/fail`, `key` a text of its run's own.

    The database is no guard of what may be asked of the network: an address whose host is not listed (any more) gets
    nothing, which is logged.
    """
    alerts = conf.get_config().alerts
    if alerts is None:
        return
    if refusal := find_refusal(url, alerts.hosts):
        logger.warning("A schedule's address to ping is left alone: %s", refusal)
        return
    global _pinger
    with _lock:
        if _pinger is None or _pinger.pid != os.getpid():
            _pinger = _Pinger()
    rid = str(uuid.uuid5(_NAMESPACE, f"{conf.get_config().prefix}:{key}"))
    try:
        _pinger.waiting.put_nowait(Ping(url, rid, what, body[:MOST_BODY].encode("utf-8", "replace")))
    except queue.Full:
        logger.warning("A ping was dropped: %d wait already.", MOST)


def flush(seconds: float = FLUSH_SECONDS) -> None:
    """Give what waits so long; tried once more it is not. For a process that ends."""
    if _pinger is None or _pinger.pid != os.getpid():
        return
    _pinger.ending.set()
    until = time.monotonic() + seconds
    while _pinger.waiting.unfinished_tasks and time.monotonic() < until:
        time.sleep(0.02)
    _pinger.ending.clear()
