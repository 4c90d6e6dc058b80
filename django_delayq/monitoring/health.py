"""Probes: whether Redis and the database answer, and whether a worker's loop runs."""

import time
from typing import NamedTuple

from django.db import Error, connections

from .. import conf, ledger
from ..exceptions import BrokerError
from ..index.web import ask

PLAIN = "text/plain; charset=utf-8"

#: Minimum seconds without a round after which a loop counts as stuck, however short the leases are.
STILL_SECONDS = 30.0


class Page(NamedTuple):
    status: int
    body: bytes
    content_type: str = PLAIN


def create_page(missing: list[str]) -> Page:
    return Page(503 if missing else 200, f"{', '.join(missing) or 'ok'}\n".encode())


def find_unready() -> list[str]:
    """Return which of "redis" and "database" do not answer."""
    missing = []
    try:
        ask(lambda broker: broker.read_now_ms())
    except BrokerError:
        missing.append("redis")
    try:
        with connections[ledger.get_database()].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        missing.append("database")
    return missing


def is_moving(moved_at: float) -> bool:
    """Return whether a worker's loop ran recently; `moved_at` is its last round (monotonic), 0 before the first.

    A worker whose loop is stuck starts and records nothing, but still renews its leases. Only a restart frees them.
    """
    still = max(2 * conf.get_config().lease_seconds, STILL_SECONDS)
    return not moved_at or time.monotonic() - moved_at < still
