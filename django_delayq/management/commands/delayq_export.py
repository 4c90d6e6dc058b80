"""`manage.py delayq_export`: schedules as JSON lines, for another project. No logic of its own."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_delayq import ledger
from django_delayq.exceptions import DelayQError
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
            found = set()
            for told in importing.exported(names):
                self.stdout.write(json.dumps(told))
                found.add(told["name"])
        except (DelayQError, ImproperlyConfigured, DatabaseError) as error:
            raise CommandError(str(error)) from error
        if unknown := sorted(set(names) - found):
            raise CommandError(f"There is no schedule {', '.join(map(repr, unknown))}.")
