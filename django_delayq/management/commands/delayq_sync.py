"""`manage.py delayq_sync`: sync declared schedules to the database, and the database to Redis. No logic of its own."""

import json
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_delayq import conf, ledger, sync
from django_delayq.index import Broker
from django_delayq.management.command import DelayQCommand
from django_delayq.monitoring.database_side import find_unnamed, read_used
from django_delayq.monitoring.problems import judge_unnamed
from django_delayq.monitoring.redis_side import read_redis
from django_delayq.sources import declared
from django_delayq.text import escape_text

TIMEOUT_SECONDS = 10.0
#: Maximum lines about changes in Redis; `-v 2` prints all.
MOST_LINES = 20


class Command(DelayQCommand):
    """Safe at any time, also beside running workers; only `--purge` and `--adopt` require that they are stopped."""

    help = (
        "Sync the schedules that the code declares (@periodic) to the database, and the database to Redis, and print "
        "the changes."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print the changes as one JSON object.")
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--dry-run", action="store_true", help="Only list the changes.")
        purge = "Remove all keys under the prefix. Stop the workers first."
        group.add_argument("--purge", action="store_true", help=purge)
        adopt = "Take the prefix over from another database. Stop the workers first."
        group.add_argument("--adopt", action="store_true", help=adopt)

    def handle(self, *args: Any, **options: Any) -> None:
        if reason := conf.explain_no_redis():
            raise CommandError(f"{reason}: this process touches no Redis.")
        broker = Broker(timeout_seconds=TIMEOUT_SECONDS)
        if options["purge"]:
            count, prefix = broker.purge(), conf.get_config().prefix
            self.stdout.write(f"Removed {count} keys under the prefix {prefix!r}.")
            return
        ledger.check_tables()
        if options["adopt"]:
            self._sweep(broker, options, sync.adopt)
        else:
            self._sync(broker, options)

    def _sync(self, broker: Broker, options: dict[str, Any]) -> None:
        dry_run = options["dry_run"]
        sync.check_layout(broker, claim=not dry_run)
        found = declared.sync(dry_run=dry_run)
        for line in () if options["json"] else found.lines:
            self.stdout.write(line)
        if found and not options["json"]:
            self.stdout.write(f"{found.checked} declared schedules, {found.changed} {_format_changed(options)}.")
        sweep = partial(sync.sweep_fully, dry_run=True) if dry_run else sync.sweep_now
        self._sweep(broker, options, sweep, declared=found.lines)
        if found.problems:
            raise CommandError("\n".join(["Of the declared schedules, these could not be synced:", *found.problems]))

    def _sweep(
        self, broker: Broker, options: dict[str, Any], sweep: Callable[..., sync.SweepReport], **also: list[str]
    ) -> None:
        report = sweep(broker)
        problems = [each.message for each in judge_unnamed(find_unnamed(read_used()["queue"]), read_redis(broker))]
        if options["json"]:
            also["problems"] = problems
            summary = {"checked": report.checked, "changed": len(report.lines), "dry_run": options["dry_run"], **also}
            self.stdout.write(json.dumps({**summary, "lines": report.lines}))
            return
        most = len(report.lines) if options["verbosity"] > 1 else MOST_LINES
        for line in report.lines[:most]:
            self.stdout.write(escape_text(line))
        if len(report.lines) > most:
            self.stdout.write(f"… and {len(report.lines) - most:,} more; -v 2 lists all.")
        self.stdout.write(f"{report.checked} schedules checked, {len(report.lines)} {_format_changed(options)}.")
        for problem in problems:
            self.stdout.write(escape_text(problem))


def _format_changed(options: dict[str, Any]) -> str:
    return "would be changed" if options["dry_run"] else "changed"
