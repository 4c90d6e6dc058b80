"""How many workers and shards, and how much memory and disk, so much work takes: by what was measured elsewhere."""

import math
from dataclasses import dataclass

#: Measured on PostgreSQL 15 and Valkey 9, two cores of a small virtual machine: see docs/size.md, "What it costs".
REDIS_BYTES, SCHEDULE_BYTES, RUN_BYTES, WORKER_BYTES = 190, 741, 313, 68 * 2**20
#: Seconds of processor time: of a worker for a point and a job, of Redis for either, of a worker for an entry put back.
POINT_SECONDS, JOB_SECONDS, REDIS_SECONDS, REBUILD_SECONDS = 190e-6, 85e-6, 20e-6, 25e-6
#: No more of a processor is planned for: the rest is for herds, rebuilds, and a worker that is being replaced.
SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Capacity:
    """What it takes. Bytes of PostgreSQL are with indexes; `threads` are of each worker process."""

    workers: int
    threads: int
    shards: int
    redis_bytes: int
    workers_bytes: int
    database_bytes: int
    rebuild_seconds: float


def capacity(
    *, schedules: float, points: float = 0.0, jobs: float = 0.0, task_seconds: float = 0.0, days: float = 0.0
) -> Capacity:
    """Work out what so many schedules, points and jobs a second, and days of history, take.

    `task_seconds` is how long a task waits for others on average. Its own computing is to be added: it competes with
    the worker for the process' one processor.
    """
    busy = points * POINT_SECONDS + jobs * JOB_SECONDS
    workers = max(1, math.ceil(busy / SHARE))
    return Capacity(
        workers=workers,
        threads=max(1, math.ceil((points + jobs) * task_seconds / SHARE / workers)),
        shards=max(1, math.ceil((points + jobs) * REDIS_SECONDS / SHARE)),
        redis_bytes=int(schedules * REDIS_BYTES),
        workers_bytes=workers * WORKER_BYTES,
        database_bytes=int(schedules * SCHEDULE_BYTES + points * 86_400 * days * RUN_BYTES),
        rebuild_seconds=round(schedules * REBUILD_SECONDS, 1),
    )
