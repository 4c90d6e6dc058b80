"""`manage.py delayq_export`: schedules as JSON lines, for another project. No logic of its own."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_delayq import ledger
from django_delayq.management.command import DelayQCommand
from django_delayq.sources import importing


class Command(DelayQCommand):
    """Reads definitions: no state, no history; arguments are not redacted. Needs no Redis."""

    help = (
        "Write schedules as JSON lines, one each, with all columns of the definition; `delayq_import json` reads them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="Write only these schedules. Default: all.")

    def handle(self, *args: Any, **options: Any) -> None:
        ledger.check_tables()
        found = set()
        for row in importing.export_schedules(options["names"]):
            self.stdout.write(json.dumps(row))
            found.add(row["name"])
        if unknown := sorted(set(options["names"]) - found):
            raise CommandError(f"There is no schedule {', '.join(map(repr, unknown))}.")
