"""A worker's port: a small HTTP server in a thread of its own.

Note [Connections are limited]
The server runs in the worker's process and must not use up the file descriptors that tasks need. At most
MOST_CONNECTIONS are open. When all are in use, a new connection closes the one that has waited longest without a
request, so that idle connections do not block probes.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from django.db import connections

from ..calls import tracing
from ..monitoring import health
from ..monitoring.health import Page, said
from .loop import Worker

logger = logging.getLogger("django_delayq.worker")

#: Seconds without data after which a connection is closed.
TIMEOUT_SECONDS = 10.0
MOST_CONNECTIONS = 8
#: Seconds to pause after a failed accept, and to wait for a free connection. Nothing else is accepted in that time.
PAUSE_SECONDS = 0.5


Pages = Mapping[str, Callable[[], Page]]


def pages_of(worker: Worker) -> Pages:
    """Return the pages that a worker serves. Needs `prometheus_client`."""
    from ..monitoring.metrics import CONTENT_TYPE_LATEST, render_gauges

    return {
        "/metrics": lambda: Page(200, told_by(worker), CONTENT_TYPE_LATEST),
        "/fleet": lambda: Page(200, render_gauges(), CONTENT_TYPE_LATEST),
        "/healthz": lambda: said([] if health.moves(worker.moved_at) else ["loop"]),
        "/readyz": lambda: said(health.unready()),
    }


def told_by(worker: Worker) -> bytes:
    """Return this process' metrics, and those that tasks have put into `prometheus_client`'s own registry."""
    from prometheus_client import REGISTRY

    from ..monitoring.metrics import CounterMetricFamily, Gauges, collect_counts, format_families

    gauges, now = Gauges(), worker.describe()
    gauges.put("worker_threads", "Tasks that this process can run at a time.", now["threads"])
    gauges.put("worker_running", "Tasks that run in this process.", now["running"])
    gauges.put("worker_leases", "Entries that this process has claimed and not given back.", now["held"])
    said = "Rebuilds of a flushed index that this process has brought to an end."
    rebuilds = CounterMetricFamily("delayq_rebuilds", said, value=worker.upkeep.rebuilds)
    return format_families([*collect_counts(worker.counting.brought), rebuilds, *gauges.values(), *REGISTRY.collect()])


def served(worker: Worker) -> AbstractContextManager[object]:
    """Listen if the worker has a metrics port; return a context that serves requests.

    Raises:
        OSError: The port is in use, or the host is not an address of this machine.
    """
    options = worker.options
    if options.metrics_port is None:
        return nullcontext()
    return Server(options.metrics_host, options.metrics_port, pages_of(worker))


class Server:
    """A context: listens once constructed, serves requests inside."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = TIMEOUT_SECONDS

            def do_GET(self) -> None:
                self.server.idle.pop(self.request, None)  # type: ignore[attr-defined]
                _answer(self, pages)

            do_HEAD = do_GET

            def log_message(self, text: str, *args: object) -> None:
                logger.debug(text, *args)

        self._http = _Listener((host, port), Handler)
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, name="delayq-metrics", daemon=True)
        os.register_at_fork(after_in_child=self._http.socket.close)  # a child that a task forks must not keep the port

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Listener(ThreadingHTTPServer):
    """See Note [Connections are limited]."""

    daemon_threads = True
    #: Maximum connections waiting for accept. With the standard library's 5, a burst waits a second.
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        #: The connections without a request so far, the oldest first.
        self.idle: dict[Any, None] = {}
        super().__init__(address, handler)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_SECONDS)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        if not self.room.acquire(blocking=False):
            with suppress(StopIteration, RuntimeError, OSError):  # another thread closes or answers it
                next(iter(self.idle)).shutdown(socket.SHUT_RDWR)
            if not self.room.acquire(timeout=PAUSE_SECONDS):
                return False
        self.idle[request] = None
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("A request of %s failed.", client_address, exc_info=True)

    def _leave(self, request: Any) -> None:
        self.idle.pop(request, None)
        self.room.release()


@tracing.quiet()
def _answer(request: BaseHTTPRequestHandler, pages: Pages) -> None:
    try:
        page = pages.get(request.path.partition("?")[0], lambda: Page(404, f"{' '.join(pages)}\n".encode()))()
    except Exception:
        logger.exception("%s could not be told.", request.path)
        page = Page(500, b"")
    finally:
        connections.close_all()
    request.send_response(page.status)
    request.send_header("Content-Type", page.content_type)
    request.send_header("Content-Length", str(len(page.body)))
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(page.body)
