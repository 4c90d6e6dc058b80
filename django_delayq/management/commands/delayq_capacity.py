"""`manage.py delayq_capacity`: what so much work takes. No logic of its own."""

import json
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand

from django_delayq.capacity import capacity


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
            ("--jobs-per-second", "N", "Jobs that are executed in a second."),
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
            ("Redis", f"{_size(found.redis_bytes)} beside jobs"),
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
