"""Whether Redis and the database answer: for probes. Says nothing of what is in them."""

import time
from typing import NamedTuple

from django.db import Error, connections

from .. import conf, ledger
from ..exceptions import BrokerError
from ..index.web import ask

PLAIN = "text/plain; charset=utf-8"

#: A loop that is late by so much stands still, however short the leases are.
STILL_SECONDS = 30.0


class Page(NamedTuple):
    """What a path answers."""

    status: int
    body: bytes
    content_type: str = PLAIN


def said(missing: list[str]) -> Page:
    """Return the page of a probe: 200, or 503 with what is missing."""
    return Page(503 if missing else 200, f"{', '.join(missing) or 'ok'}\n".encode())


def unready() -> list[str]:
    """Return which of the two do not answer; none of them where this process could work."""
    missing = []
    try:
        ask(lambda broker: broker.now_ms())
    except BrokerError:
        missing.append("redis")
    try:
        with connections[ledger.database()].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        missing.append("database")
    return missing


def moves(moved_at: float) -> bool:
    """Say whether a worker's loop, whose last round was at `moved_at` (monotonic; 0: it has not begun), is in time.

    What makes it wait for longer than two leases has lost all that it held: a restart costs nothing more.
    """
    still = max(2 * conf.get_config().lease_seconds, STILL_SECONDS)
    return not moved_at or time.monotonic() - moved_at < still
