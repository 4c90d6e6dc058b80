"""`manage.py delayq_status`: how the whole thing stands, and for probes whether it is well. No logic of its own."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error

from django_delayq import conf
from django_delayq.monitoring import alerts, status
from django_delayq.text import plain, redact_text


class Command(BaseCommand):
    """Reads Redis and the database; changes nothing but, with `--alert`, states of alerts. Exits as `--help` says."""

    help = (
        "Show workers, shards, drift, schedules and jobs, and say what is wrong. Exit status: 0 all is well; 1 "
        "something is wrong; 2 Redis, the database or the settings are such that it cannot be told."
    )
    requires_system_checks = []  # a probe answers also where something else of the project is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
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
        """Print it and exit with the status."""
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
            for line in status.as_lines(snapshot, problems):
                self.stdout.write(plain(line))
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
