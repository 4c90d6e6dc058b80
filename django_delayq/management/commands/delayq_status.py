"""`manage.py delayq_status`: report the state of workers, queues and schedules, or explain one schedule or job."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error

from django_delayq import conf, ledger
from django_delayq.calls.validators import is_storable
from django_delayq.models import Run, Schedule
from django_delayq.monitoring import alerts, explain, status
from django_delayq.recurrence.point import utcnow
from django_delayq.recurrence.zone import get_zone
from django_delayq.text import plain, redact_text

#: Maximum of `--next`.
MOST_SHOWN = 1000
#: Maximum number of names that a misspelt one is compared with.
MOST_COMPARED = 10_000


class Command(BaseCommand):
    """Reads Redis and the database. Writes nothing except, with `--alert`, states of alerts."""

    help = (
        "Report workers, queues, schedules and jobs, and what is wrong with them. With NAME or --job: explain why a "
        "schedule or a job did or did not run. Exit status: 0 all is well; 1 something is wrong; 2 Redis, the "
        "database or the settings do not let it find out."
    )
    requires_system_checks = []  # a probe must answer even if another part of the project is misconfigured

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("schedule", nargs="?", metavar="NAME", help="Explain this schedule: its name or id.")
        parser.add_argument("--job", metavar="ID", help="Explain this job: the id of its result, or its primary key.")
        parser.add_argument(
            "--at",
            metavar="TIME",
            help="With NAME: one due time, '2026-11-21 09:00' in the schedule's zone, or 09:00 for today.",
        )
        parser.add_argument("--next", metavar="N", type=int, help="With NAME: list the next N due times.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument(
            "--max-lag",
            metavar="SECONDS",
            type=float,
            default=60.0,
            help="An entry that has been due for longer is a problem (default 60).",
        )
        parser.add_argument(
            "--timeout", metavar="SECONDS", type=float, default=2.0, help="Answer within so long (default 2)."
        )
        parser.add_argument(
            "--alert",
            action="store_true",
            help="Also do what workers do of DELAYQ['ALERTS']: note what is wrong and have it told; where no worker "
            "serves the queue of these messages, send them. For cron: give it every minute.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the report or the explanation, and exit with the status."""
        if options["schedule"] is not None or options["job"] is not None:
            self._print(_explain(options))
            return
        if options["at"] is not None or options["next"] is not None:
            raise CommandError("--at and --next need the name of a schedule.")
        if not options["max_lag"] >= 0:
            raise CommandError(f"--max-lag is zero or more, not {options['max_lag']:g}.", returncode=2)
        if not 0.1 <= options["timeout"] <= 600:
            raise CommandError(f"--timeout is from 0.1 to 600, not {options['timeout']:g}.", returncode=2)
        try:
            if not conf.get_config().mirror:
                raise CommandError(f"{conf.why_no_redis()}: this process touches no Redis.", returncode=2)
            snapshot = status.look(seconds=options["timeout"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        if options["alert"]:
            self._alert()
        problems = status.judge(snapshot, max_lag=options["max_lag"])
        if options["json"]:
            values = status.as_dict(snapshot, problems)
            self.stdout.write(plain(json.dumps(values, cls=DjangoJSONEncoder, ensure_ascii=False)))
        else:
            self._print(status.as_lines(snapshot, problems))
        code = status.exit_status(problems)
        if code:
            sys.exit(code)

    def _alert(self) -> None:
        if conf.get_config().alerts is None:
            raise CommandError("DELAYQ['ALERTS'] says nothing: nobody is to be told.", returncode=2)
        try:
            for failure in alerts.deliver_pending(alerts.look_now()):
                self.stderr.write(plain(f"Not sent: {failure}"))
        except (Error, ImproperlyConfigured) as error:
            self.stderr.write(plain(f"Nobody can be told now: {redact_text(str(error).strip())}"))

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.stdout.write(plain(line))


def _explain(options: dict[str, Any]) -> list[str]:
    now, count = utcnow(), options["next"]
    if options["job"] is not None:
        if options["schedule"] is not None or options["at"] is not None or count is not None:
            raise CommandError("--job takes no schedule, --at or --next.")
        return explain.explain_job(_find_job(options["job"]), now)
    schedule = _find(options["schedule"])
    if count is not None and not 1 <= count <= MOST_SHOWN:
        raise CommandError(f"--next must be from 1 to {MOST_SHOWN}, not {count}.")
    try:
        get_zone(schedule.timezone)
        if options["at"] is not None:
            moment = explain.parse_moment(options["at"], schedule.timezone, now)
            lines = explain.explain_point(schedule, moment, now)
        else:
            lines = [] if count is not None else explain.explain_state(schedule, now)
        return lines if count is None else lines + explain.list_next(schedule, count)
    except (ValueError, OverflowError) as error:  # InvalidRecurrence is one
        raise CommandError(str(error)) from error


def _find_job(text: str) -> Run:
    job = explain.find_job(text)
    if job is None:
        raise CommandError(f"There is no job with the id {text[:200]!r}; its row may have expired.")
    return job


def _find(text: str) -> Schedule:
    """Return the schedule with this name, else with this id."""
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
