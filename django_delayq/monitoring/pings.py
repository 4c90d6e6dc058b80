"""Reports starts and ends of executions to a service such as healthchecks.io, for schedules with a ping URL.

Best effort: one thread in each process sends, and executions never wait for it. A ping is dropped if the queue is full,
if the host rejects all tries or has just rejected another ping, or if the process is killed. The parameter `rid` is the
same for all pings of a run.
"""

import logging
import os
import queue
import threading
import time
import uuid
from urllib.parse import urlsplit

from .. import conf
from ..calls import tracing
from ..conf.alerts import find_refusal
from .outgoing import DeliveryFailed, post

logger = logging.getLogger("django_delayq.worker")

#: Maximum queued pings; further ones are dropped.
MOST = 1000
#: Limit of one try of a ping.
TIMEOUT_SECONDS = 5.0
#: Seconds before the second and the third try; start pings are not retried.
PAUSES = (1.0, 3.0)
#: Seconds for which a failing host is skipped, so that it does not delay pings to other hosts.
REST_SECONDS = 30.0
#: Seconds that an ending process waits for its queued pings.
FLUSH_SECONDS = 5.0
#: Maximum characters of the body of a ping.
MOST_BODY = 10_000
_NAMESPACE = uuid.UUID("5f6c1d0e-8a63-4c7b-9a50-2d1c64c3b4f7")


class _Pinger:
    def __init__(self) -> None:
        self.pid = os.getpid()
        #: URLs, pauses before further tries, and bodies.
        self.waiting: queue.Queue[tuple[str, tuple[float, ...], bytes]] = queue.Queue(MOST)
        self.resting: dict[str, float] = {}
        self.ending = threading.Event()
        threading.Thread(target=self._run, name="delayq-pings", daemon=True).start()

    @tracing.quiet()
    def _run(self) -> None:
        while True:
            request = self.waiting.get()
            try:
                self._send(*request)
            except Exception:
                logger.exception("A ping could not be sent")
            finally:
                self.waiting.task_done()

    def _send(self, url: str, pauses: tuple[float, ...], body: bytes) -> None:
        host = urlsplit(url).netloc
        alerts = conf.get_config().alerts
        if alerts is None or self.resting.get(host, 0.0) > time.monotonic():
            return
        for pause in (*pauses, None):
            try:
                headers = {"content-type": "text/plain; charset=utf-8", "user-agent": "django-delayq"}
                post(url, body, headers, hosts=alerts.hosts, timeout_seconds=TIMEOUT_SECONDS)
                return
            except DeliveryFailed as error:
                if pause is None or self.ending.is_set():
                    self.resting[host] = time.monotonic() + REST_SECONDS
                    logger.warning("A ping failed and is dropped: %s", error)
                    return
            self.ending.wait(pause)


_pinger: _Pinger | None = None
_lock = threading.Lock()


def ping(url: str, what: str, key: str, body: str = "") -> None:
    """Queue a request and return immediately; `what` is `/start`, '' or `/fail`, `key` is unique to the run.

    A URL from the database is not trusted: if its host is not listed (any more), this logs a warning and sends nothing.
    """
    alerts = conf.get_config().alerts
    if alerts is None:
        return
    if refusal := find_refusal(url, alerts.hosts):
        logger.warning("A ping is not sent: %s", refusal)
        return
    global _pinger
    with _lock:
        if _pinger is None or _pinger.pid != os.getpid():
            _pinger = _Pinger()
    rid = str(uuid.uuid5(_NAMESPACE, f"{conf.get_config().prefix}:{key}"))
    try:
        pauses = () if what == "/start" else PAUSES
        request = f"{url.rstrip('/')}{what}?rid={rid}", pauses, body[:MOST_BODY].encode("utf-8", "replace")
        _pinger.waiting.put_nowait(request)
    except queue.Full:
        logger.warning("A ping was dropped: %d others are queued.", MOST)


def flush(seconds: float = FLUSH_SECONDS) -> None:
    """Wait up to `seconds` for queued pings, without retries. For a process that ends."""
    if _pinger is None or _pinger.pid != os.getpid():
        return
    _pinger.ending.set()
    until = time.monotonic() + seconds
    while _pinger.waiting.unfinished_tasks and time.monotonic() < until:
        time.sleep(0.02)
    _pinger.ending.clear()
