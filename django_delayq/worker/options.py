"""What a worker is told at its start. Values only."""

import os
import secrets
import socket
from dataclasses import dataclass, field


def worker_name() -> str:
    """Return a name that no other process has: host, process id, and a random part (ids come again)."""
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """`queues` are polled in turn; `burst` ends when nothing is due; `max_runs` ends after that many runs."""

    queues: tuple[str, ...]
    threads: int = 8
    burst: bool = False
    max_runs: int | None = None
    name: str = field(default_factory=worker_name)
    metrics_port: int | None = None
    metrics_host: str = ""
