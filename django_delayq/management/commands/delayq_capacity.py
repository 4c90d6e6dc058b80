"""`manage.py delayq_capacity`: how many workers and shards, and how much memory and disk, so much work takes."""

import json
import math
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import asdict, dataclass
from typing import Any

from django.core.management.base import BaseCommand

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


def _amount(text: str) -> float:
    try:
        value = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise ArgumentTypeError(f"{text!r} is no number from 0 on. Write 5000000, 5_000_000 or 5e6.")
    return value


class Command(BaseCommand):
    """Asks neither Redis nor the database. A rough guess by what was measured elsewhere: measure your own."""

    help = "Say how many workers and shards, and how much memory and disk, so many schedules and points take, roughly."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        for name, unit, text in (
            ("--schedules", "N", "Schedules in all."),
            ("--points-per-second", "N", "Due points that are executed in a second."),
            ("--jobs-per-second", "N", "Plain jobs that are executed in a second."),
            ("--task-seconds", "S", "How long a task waits for others on average, such as for an answer."),
            ("--days", "N", "For how many days runs are kept."),
        ):
            parser.add_argument(name, type=_amount, default=0.0, metavar=unit, help=text)
        parser.add_argument("--json", action="store_true", help="Say it as one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it."""
        found = capacity(
            schedules=options["schedules"],
            points=options["points_per_second"],
            jobs=options["jobs_per_second"],
            task_seconds=options["task_seconds"],
            days=options["days"],
        )
        if options["json"]:
            self.stdout.write(json.dumps(asdict(found)))
            return
        for name, value in (
            ("worker processes", f"{found.workers:,} with {found.threads:,} threads each"),
            ("their memory", _size(found.workers_bytes)),
            ("shards", f"{found.shards:,}"),
            ("Redis", f"{_size(found.redis_bytes)} beside jobs and results"),
            ("PostgreSQL", f"{_size(found.database_bytes)} with indexes"),
            ("rebuild after a flush", f"{found.rebuild_seconds:,.0f} s of one worker's processor time"),
        ):
            self.stdout.write(f"{name:<22} {value}")


def _size(number: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:,.0f} {unit}"
        number //= 1024
    raise AssertionError
