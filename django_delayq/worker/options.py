"""What a worker is told at its start. Values only."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Final

#: Drained: nothing of this process is left in Redis.
OK: Final = 0
#: Ended with entries unfinished, whose leases must run out. Django ends with the same number after a `CommandError`.
UNFINISHED: Final = 1
#: Drained, as far as it went, because this process should not go on (a task hangs in it): a fresh one is to take its
#: place. The number is EX_TEMPFAIL of sysexits.h, which neither Python nor a shell uses by itself.
RECYCLE: Final = 75
#: Drained, because the database was migrated to the layout of a later release: unless that is installed by now, a start
#: is in vain. The number is EX_CONFIG of sysexits.h.
OUTDATED: Final = 78


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
