"""`manage.py delayq_sync`: make Redis agree with the database, and say what changed. No logic of its own."""

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_delayq import conf, ledger, mirror
from django_delayq.broker import Broker
from django_delayq.exceptions import DelayQError

TIMEOUT_SECONDS = 10.0


class Command(BaseCommand):
    """Safe at any time, also beside running workers; `--purge` and `--adopt` want them stopped."""

    help = "Make Redis agree with the database and say what was changed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--dry-run", action="store_true", help="Only say what would be changed.")
        group.add_argument("--purge", action="store_true", help="Remove everything under the prefix from Redis.")
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
            raise CommandError("DELAYQ['MIRROR'] is False: this process touches no Redis.")
        broker = Broker(timeout_seconds=TIMEOUT_SECONDS)
        if options["purge"]:
            count = broker.purge()
            self.stdout.write(f"Removed {count} keys under the prefix {config.prefix!r}.")
            return
        ledger.check_tables()
        mirror.check_layout(broker, adopt=options["adopt"], dry_run=options["dry_run"])
        report = mirror.full_sweep(broker, dry_run=options["dry_run"])
        for line in report.lines:
            self.stdout.write(line)
        would = "would be changed" if options["dry_run"] else "changed"
        self.stdout.write(f"{report.checked} schedules checked, {len(report.lines)} {would}.")
