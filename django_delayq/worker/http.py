"""A worker's port: a small HTTP server in a thread of its own.

Note [Connections are limited]
At most MOST_CONNECTIONS are open, so that tasks keep their file descriptors; idle ones end after TIMEOUT_SECONDS.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from django.db import connections

from ..calls import tracing
from ..monitoring import health
from ..monitoring.health import Page, create_page
from .loop import Worker

logger = logging.getLogger("django_delayq.worker")

#: Seconds without data after which a connection is closed.
TIMEOUT_SECONDS = 2.0
MOST_CONNECTIONS = 8
#: Seconds to pause after a failed accept.
PAUSE_SECONDS = 0.5

Pages = Mapping[str, Callable[[], Page]]


def build_pages(worker: Worker) -> Pages:
    """Return the pages that a worker serves. Needs `prometheus_client`."""
    from ..monitoring.metrics import CONTENT_TYPE_LATEST, render_gauges

    return {
        "/metrics": lambda: Page(200, render_metrics(worker), CONTENT_TYPE_LATEST),
        "/fleet": lambda: Page(200, render_gauges(), CONTENT_TYPE_LATEST),
        "/healthz": lambda: create_page([] if health.is_moving(worker.moved_at) else ["loop"]),
        "/readyz": lambda: create_page(health.find_unready()),
    }


def render_metrics(worker: Worker) -> bytes:
    """Return this process' metrics, and those that tasks have put into `prometheus_client`'s own registry."""
    from prometheus_client import REGISTRY

    from ..monitoring.metrics import CounterMetricFamily, Gauges, collect_counts, format_families

    gauges, now = Gauges(), worker.describe()
    gauges.put("worker_threads", "Tasks that this process can run at a time.", now["threads"])
    gauges.put("worker_running", "Tasks that run in this process.", now["running"])
    gauges.put("worker_leases", "Entries that this process has claimed and not given back.", now["held"])
    text = "Rebuilds of a flushed index that this process has brought to an end."
    rebuilds = CounterMetricFamily("delayq_rebuilds", text, value=worker.upkeep.rebuilds)
    return format_families([*collect_counts(worker.counting.brought), rebuilds, *gauges.values(), *REGISTRY.collect()])


class Server(ThreadingHTTPServer):
    """A context: listens once constructed, serves requests inside. See Note [Connections are limited]."""

    daemon_threads = True
    #: Maximum connections waiting for accept. With the standard library's 5, a burst waits a second.
    request_queue_size = 64

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = TIMEOUT_SECONDS

            def do_GET(self) -> None:
                _answer(self, pages)

            do_HEAD = do_GET

            def log_message(self, text: str, *args: object) -> None:
                logger.debug(text, *args)

        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), Handler)
        os.register_at_fork(after_in_child=self.socket.close)  # a child that a task forks must not keep the port

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="delayq-metrics", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_SECONDS)  # the failure would repeat at once
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            try:
                super().finish_request(request, client_address)
            finally:
                self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("A request of %s failed.", client_address, exc_info=True)  # often a client that is gone


@tracing.quiet()
def _answer(request: BaseHTTPRequestHandler, pages: Pages) -> None:
    try:
        page = pages.get(request.path.partition("?")[0], lambda: Page(404, f"{' '.join(pages)}\n".encode()))()
    except Exception:
        logger.exception("%s could not be served.", request.path)
        page = Page(500, b"")
    finally:
        connections.close_all()
    request.send_response(page.status)
    request.send_header("Content-Type", page.content_type)
    request.send_header("Content-Length", str(len(page.body)))
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(page.body)
