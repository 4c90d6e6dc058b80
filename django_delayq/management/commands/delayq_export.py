"""`manage.py delayq_export`: schedules as JSON lines, for another project. No logic of its own."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_delayq import ledger
from django_delayq.exceptions import DelayQError
from django_delayq.management.progress import Progress
from django_delayq.models import Schedule
from django_delayq.sources import importing


class Command(BaseCommand):
    """Reads definitions: no state, no history; arguments are not redacted. Needs no Redis."""

    help = (
        "Write schedules as JSON lines, one each, with all columns of the definition; `delayq_import json` reads them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("names", nargs="*", metavar="NAME", help="Only these; without one, all schedules.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the schedules; fail with one line if a name is unknown."""
        names = options["names"]
        try:
            ledger.check_tables()
            count = len(names) or Schedule._base_manager.using(ledger.database()).count()
            found = set()
            with Progress(self.stderr, "schedules", count) as progress:
                for number, told in enumerate(importing.exported(names), 1):
                    self.stdout.write(json.dumps(told))
                    found.add(told["name"])
                    progress.at(number)
        except (DelayQError, ImproperlyConfigured, DatabaseError) as error:
            raise CommandError(str(error)) from error
        if unknown := sorted(set(names) - found):
            raise CommandError(f"There is no schedule {', '.join(map(repr, unknown))}.")
