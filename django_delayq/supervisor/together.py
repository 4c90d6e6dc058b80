"""What a supervisor tells for all its workers. See `metrics/server.py`, Note [One port for all processes]."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from ..metrics.health import STILL_SECONDS, Page, said
from ..metrics.server import LOOPBACK, Pages
from ..metrics.text import CONTENT_TYPE_LATEST, text_of
from .pool import Pool

#: Whoever does not answer for so long is left out.
PATIENCE_SECONDS = 4.0


class Together:
    """Asks workers by their ports, of which `ports` are those of now, by the workers' numbers."""

    def __init__(self) -> None:
        self.ports: Mapping[int, int] = {}
        self.moved_at = time.monotonic()

    def note(self, pool: Pool) -> None:
        """Take notice that the supervisor's loop has come by, and of who is there."""
        self.ports, self.moved_at = pool.metrics_ports, time.monotonic()

    @property
    def pages(self) -> Pages:
        """What a supervisor tells: `/fleet` is told by the first worker that does."""
        return {
            "/metrics": lambda: Page(200, _merged(self._ask("/metrics")), CONTENT_TYPE_LATEST),
            "/fleet": self._fleet,
            "/healthz": lambda: said([] if time.monotonic() - self.moved_at < STILL_SECONDS else ["loop"]),
            "/readyz": self._ready,
        }

    def _ask(self, path: str) -> dict[int, Page]:
        ports = dict(self.ports)
        with ThreadPoolExecutor(max(1, len(ports))) as pool:
            answers = pool.map(lambda port: _get(port, path), ports.values())
            return {number: page for number, page in zip(ports, answers, strict=True) if page is not None}

    def _fleet(self) -> Page:
        for port in dict(self.ports).values():
            page = _get(port, "/fleet")
            if page is not None and page.status == 200:
                return page
        return said(["no worker answers"])

    def _ready(self) -> Page:
        """Ready is whoever has a worker that is: all of them ask the same servers."""
        answers = self._ask("/readyz").values()
        return min(answers, key=lambda page: page.status, default=said(["no worker answers"]))


def _get(port: int, path: str) -> Page | None:
    connection = HTTPConnection(LOOPBACK, port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Page(response.status, response.read(), response.headers.get("Content-Type", ""))
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _merged(answers: Mapping[int, Page]) -> bytes:
    """Return the metrics of all, with the number of the process as a label."""
    families: dict[str, Metric] = {}
    for number, page in answers.items():
        if page.status != 200:
            continue
        for family in text_string_to_metric_families(page.body.decode()):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged.samples += [
                sample._replace(labels={**sample.labels, "process": str(number)}) for sample in family.samples
            ]
    return text_of(families.values())
