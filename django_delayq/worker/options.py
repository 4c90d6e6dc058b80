"""The options and exit statuses of a worker. Values only."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Final

#: Drained: this process holds nothing in Redis.
OK: Final = 0
#: Ended with unfinished entries, whose leases must run out. Django uses the same status after a `CommandError`.
UNFINISHED: Final = 1
#: Drained; a fresh process must replace this one, because a task hangs in it. EX_TEMPFAIL of sysexits.h.
RECYCLE: Final = 75
#: Drained; a later release has migrated the database, so a restart is useless. EX_CONFIG of sysexits.h.
OUTDATED: Final = 78


def generate_worker_name() -> str:
    """Return a unique name for this process: host, process id (which may be reused), and a random part."""
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """`queues` are polled in turn; `burst` ends when nothing is due; `max_runs` ends after that many runs."""

    queues: tuple[str, ...]
    threads: int = 8
    burst: bool = False
    max_runs: int | None = None
    name: str = field(default_factory=generate_worker_name)
    metrics_port: int | None = None
    metrics_host: str = ""
