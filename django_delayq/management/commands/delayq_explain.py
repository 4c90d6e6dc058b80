"""`manage.py delayq_explain`: say why a due point or a job did or did not run. No logic of its own."""

from argparse import ArgumentParser
from difflib import get_close_matches
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_delayq import ledger
from django_delayq.calls.validators import is_storable
from django_delayq.models import Run, Schedule
from django_delayq.monitoring import explain
from django_delayq.recurrence.point import utcnow
from django_delayq.recurrence.zone import get_zone
from django_delayq.text import plain

MOST_SHOWN = 1000
#: Names that a misspelt one is compared with at most.
MOST_COMPARED = 10_000


class Command(BaseCommand):
    """Reads definition, ledger and Redis; writes nothing, also where Redis is down."""

    help = "Say why a due point of a schedule, or a job, did or did not run, or what is to come."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("schedule", nargs="?", help="Name or id.")
        parser.add_argument("--job", metavar="ID", help="A job instead: the id of its result, or its primary key.")
        parser.add_argument(
            "--at", metavar="TIME", help="A due point: '2026-11-21 09:00' in the schedule's zone, or 09:00 for today."
        )
        parser.add_argument("--next", metavar="N", type=int, help="List the next N due points.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it; fail with one line that says what to write."""
        now, count = utcnow(), options["next"]
        if (options["schedule"] is None) == (options["job"] is None):
            raise CommandError("Name a schedule, or a job: --job ID.")
        if options["job"] is not None:
            if options["at"] is not None or count is not None:
                raise CommandError("--at and --next are of schedules.")
            self._tell(explain.explain_job(_find_job(options["job"]), now))
            return
        schedule = _find(options["schedule"])
        if count is not None and not 1 <= count <= MOST_SHOWN:
            raise CommandError(f"--next must be from 1 to {MOST_SHOWN}, not {count}.")
        try:
            get_zone(schedule.timezone)
            if options["at"] is not None:
                moment = explain.parse_moment(options["at"], schedule.timezone, now)
                lines = explain.explain_point(schedule, moment, now)
            elif count is None:
                lines = explain.explain_state(schedule, now)
            else:
                lines = []
            if count is not None:
                lines += explain.list_next(schedule, count)
        except (ValueError, OverflowError) as error:  # InvalidRecurrence is one
            raise CommandError(str(error)) from error
        self._tell(lines)

    def _tell(self, lines: list[str]) -> None:
        for line in lines:
            self.stdout.write(plain(line))


def _find_job(text: str) -> Run:
    job = explain.find_job(text)
    if job is None:
        raise CommandError(f"There is no job with the id {text[:200]!r}; its row may have expired.")
    return job


def _find(text: str) -> Schedule:
    """Return the schedule of a name, else of an id."""
    rows = Schedule._base_manager.using(ledger.database()).select_related("state")
    found = rows.filter(name=text).first() if is_storable(text) else None
    if found is None and text.isascii() and text.isdecimal() and len(text) <= 18:
        found = rows.filter(pk=int(text)).first()
    if found is not None:
        return found
    names = rows.order_by("name").values_list("name", flat=True)
    near = list(names.filter(name__icontains=text)[:3]) if is_storable(text) else []
    if not near:
        known = {name.lower(): name for name in names[:MOST_COMPARED]}
        near = [known[name] for name in get_close_matches(text.lower(), known, n=3, cutoff=0.6)]
    hint = f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
    raise CommandError(f"There is no schedule with the name or id {text[:200]!r}.{hint}")
