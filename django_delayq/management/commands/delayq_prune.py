"""`manage.py delayq_prune`: delete runs past their retention now, and report them. No logic of its own."""

import json
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from django_delayq import ledger
from django_delayq.management.command import DelayQCommand
from django_delayq.recurrence.point import utcnow
from django_delayq.sync import pruning
from django_delayq.text import escape_text


class Command(DelayQCommand):
    """Safe at any time, also beside running workers, which do the same every hour. Needs no Redis."""

    help = (
        "Delete the runs that DELAYQ['HISTORY_DAYS'] or their schedules no longer keep, and print their numbers by "
        "task and outcome. After an interruption, run it again for the rest."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be deleted.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        counts, left, interrupted = Counter[tuple[str, str]](), 0, False
        try:
            ledger.check_tables()
            for rows, locked in self._prune(dry_run=options["dry_run"]):
                counts.update((row.task, row.status) for row in rows)
                left += locked
        except KeyboardInterrupt:
            interrupted = True
        self._print(counts, left, dry_run=options["dry_run"], as_json=options["json"])
        if interrupted:
            raise CommandError("Interrupted: run this again for the rest.", returncode=130)

    def _print(self, counts: Counter[tuple[str, str]], left: int, *, dry_run: bool, as_json: bool) -> None:
        if as_json:
            by = [{"task": task, "status": status, "runs": count} for (task, status), count in sorted(counts.items())]
            report = {"deleted": counts.total(), "left": left, "dry_run": dry_run, "by": by}
            self.stdout.write(json.dumps(report))
            return
        for (task, status), count in sorted(counts.items()):
            self.stdout.write(escape_text(f"{count:>11,} {status:<9}  {task}"))
        self.stdout.write(f"{counts.total():,} runs {'would be' if dry_run else 'were'} deleted.")
        if left:
            self.stdout.write(f"{left:,} runs are left, because they are locked: run this again later.")

    def _prune(self, *, dry_run: bool) -> Iterator[tuple[list[ledger.OldRun], int]]:
        """Yield deleted or deletable rows and the number of locked rows, batch by batch."""
        if dry_run:
            for batch in ledger.find_prunable(utcnow()):
                yield ledger.count_prunable(batch), 0
        else:
            for _, pruned in pruning.prune_batches():
                yield pruned.rows, pruned.left
