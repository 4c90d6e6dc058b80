"""What a worker is told at its start. Values only."""

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: Drained: nothing of this process is left in Redis.
OK: Final = 0
#: Ended with entries unfinished, whose leases must run out. Django ends with the same number after a `CommandError`.
UNFINISHED: Final = 1
#: Drained, as far as it went, because this process should not go on (it has made its runs, grown too large, or a task
#: hangs in it): a fresh one is to take its place. The number is EX_TEMPFAIL of sysexits.h, which neither Python nor a
#: shell uses by itself.
RECYCLE: Final = 75
#: Drained, because the database was migrated to the layout of a later release: unless that is installed by now, a start
#: is in vain. The number is EX_CONFIG of sysexits.h.
OUTDATED: Final = 78


#: Said once the prefix is checked and the slots are ready.
WORKING: Final = "working"
#: Said by a worker that is to be recycled, so that its successor can start before it has ended.
LEAVING: Final = "leaving"
#: Begins what a worker says of its port for metrics.
PORT: Final = "port:"


def port_word(port: int) -> str:
    """Return the word by which a worker says on which port of the loopback interface it tells its metrics."""
    return f"{PORT}{port}"


def worker_name() -> str:
    """Return a name that no other process has: host, process id, and a random part (ids come again)."""
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """`queues` are polled in turn; `burst` ends when nothing is due; `max_runs` ends after that many runs.

    `max_runs_per_process` and `max_memory_per_process_mb` (MiB) have the process recycled (`recycling.py`). `tell` is
    there under a supervisor only: it hears WORKING and LEAVING as they become true, never blocks, never raises.
    `metrics_port`: listen there, under a supervisor on another one (`metrics/server.py`).
    """

    queues: tuple[str, ...]
    threads: int = 8
    burst: bool = False
    max_runs: int | None = None
    max_runs_per_process: int | None = None
    max_memory_per_process_mb: int | None = None
    name: str = field(default_factory=worker_name)
    metrics_port: int | None = None
    metrics_host: str = ""
    tell: Callable[[str], None] | None = field(default=None, repr=False)

    @property
    def is_recycled(self) -> bool:
        """True where the process has limits."""
        return self.max_runs_per_process is not None or self.max_memory_per_process_mb is not None
