"""`manage.py delayq_sync`: make the database agree with what the code declares, and Redis with the database, and say
what changed. No logic of its own.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_delayq import conf, declared, ledger, mirror
from django_delayq.broker import Broker
from django_delayq.exceptions import DelayQError
from django_delayq.plain import plain

TIMEOUT_SECONDS = 10.0
#: Of what was changed in Redis so many lines are shown.
MOST_LINES = 20


class Command(BaseCommand):
    """Safe at any time, also beside running workers; only `--purge` and `--adopt` want them stopped."""

    help = (
        "Bring the schedules that the code declares (@periodic) into the database, make Redis agree with it, and say "
        "what was changed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--dry-run", action="store_true", help="Only say what would be changed.")
        group.add_argument("--purge", action="store_true", help="Remove everything under the prefix from Redis.")
        group.add_argument(
            "--reshard",
            type=int,
            nargs="?",
            const=0,
            metavar="N",
            help="Move everything to the number of shards in DELAYQ['SHARDS'], while workers run. N, if given, must be "
            "that number.",
        )
        group.add_argument("--adopt", action="store_true", help="Take the prefix over from another database.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it; fail with one line that says what to do."""
        try:
            self._handle(options)
        except (DelayQError, ImproperlyConfigured, DatabaseError) as error:
            raise CommandError(str(error)) from error

    def _handle(self, options: dict[str, Any]) -> None:
        config = conf.get_config()
        if not config.mirror:
            raise CommandError(f"{conf.why_no_redis()}: this process touches no Redis.")
        broker = Broker(timeout_seconds=TIMEOUT_SECONDS)
        if options["purge"]:
            count = broker.purge()
            self.stdout.write(f"Removed {count} keys under the prefix {config.prefix!r}.")
            return
        ledger.check_tables()
        if options["reshard"] is not None:
            self._reshard(broker, options["reshard"])
            return
        problems: list[str] = []
        if options["adopt"]:
            report = mirror.adopt(broker)
        elif options["dry_run"]:
            mirror.check_layout(broker, claim=False)
            problems = self._declared(dry_run=True)
            report = mirror.full_sweep(broker, dry_run=True)
        else:
            mirror.check_layout(broker)
            problems = self._declared(dry_run=False)
            report = mirror.sweep_now(broker)
        self._list(report.lines, options["verbosity"])
        would = "would be changed" if options["dry_run"] else "changed"
        self.stdout.write(f"{report.checked} schedules checked, {len(report.lines)} {would}.")
        if problems:
            raise CommandError("\n".join(["Of the declared schedules, these could not be synced:", *problems]))

    def _list(self, lines: Sequence[str], verbosity: int) -> None:
        """Write what was changed: all of it from verbosity 2 on, else what a person reads."""
        shown = lines if verbosity > 1 else lines[:MOST_LINES]
        for line in shown:
            self.stdout.write(plain(line))
        if len(shown) < len(lines):
            self.stdout.write(f"… and {len(lines) - len(shown):,} more; -v 2 lists all.")

    def _declared(self, *, dry_run: bool) -> list[str]:
        """Sync what the code declares, before it is mirrored, and return what could not be written."""
        report = declared.sync(dry_run=dry_run)
        for line in (*report.lines, *report.notes):
            self.stdout.write(line)
        if report:
            would = "would be changed" if dry_run else "changed"
            self.stdout.write(f"{report.checked} declared schedules, {report.changed} {would}.")
        return report.problems

    def _reshard(self, broker: Broker, number: int) -> None:
        config = conf.get_config()
        if number and any(config.shard_count(queue) != number for queue in config.queues):
            raise CommandError(
                f"DELAYQ['SHARDS'] is {config.shards!r} here, not {number}. Set the new number first, in the settings "
                "that the next workers start with, and run this with them."
            )
        moved = mirror.reshard(broker, say=self.stdout.write)
        for queue, count in moved.items():
            self.stdout.write(f"{queue}: {count} entries moved to {config.shard_count(queue)} shards.")
        if not moved:
            self.stdout.write("Nothing to do: Redis has as many shards as DELAYQ['SHARDS'] says.")
