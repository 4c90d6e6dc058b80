"""`manage.py delayq_control`: pause, resume or limit queues and tasks; list pauses and limits. No logic of its own."""

import getpass
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from django_delayq import actions, ledger
from django_delayq.management.command import DelayQCommand
from django_delayq.monitoring import explain
from django_delayq.recurrence.point import utcnow
from django_delayq.text import escape_text


class Command(DelayQCommand):
    """Writes one database row, which every worker follows within a second. Needs no Redis."""

    help = "Pause or resume a queue or a task, or limit a queue. Without a subcommand, list all pauses and limits."

    def add_arguments(self, parser: ArgumentParser) -> None:
        words = parser.add_subparsers(dest="word", metavar="pause | resume | limit")
        pause = words.add_parser("pause", help="Start no further run or job; running tasks continue.")
        resume = words.add_parser("resume", help="End a pause.")
        limit = words.add_parser("limit", help="Limit the number of tasks of a queue that run at a time.")
        for parsed in (pause, resume):
            parsed.add_argument("name", help="A queue, or with --task the path of a task.")
            parsed.add_argument("--task", action="store_true", help="The name is that of a task.")
        pause.add_argument("--reason", default="", help="Reason, shown to users.")
        pause.add_argument("--until", metavar="TIME", help="End of the pause in TIME_ZONE: 2026-11-21 09:00, or 09:00.")
        limit.add_argument("name", help="A queue.")
        limit.add_argument("most", metavar="NUMBER", help="A number, or 'none' for no limit.")

    def handle(self, *args: Any, **options: Any) -> None:
        ledger.check_tables()
        try:
            rows = [self._change(options)] if options["word"] else ledger.load_controls()
        except ValueError as error:  # of a time, or an action
            raise CommandError(str(error)) from error
        for row in rows:
            self.stdout.write(escape_text(f"{row}: {row.restrictions or 'nothing is held back'}."))
        if not rows:
            self.stdout.write("Nothing is held back.")

    def _change(self, options: dict[str, Any]) -> Any:
        name, by = options["name"], _read_user()
        if options["word"] == "limit":
            most = options["most"]
            if most != "none" and not (most.isascii() and most.isdecimal() and len(most) <= 9):
                raise CommandError(f"{most!r} is not a limit: write a whole number, or none.")
            return actions.limit(name, None if most == "none" else int(most), by=by)
        named = {"task": name} if options["task"] else {"queue": name}
        if options["word"] == "resume":
            return actions.resume(**named, by=by)
        until = options["until"]
        if until is not None:
            until = explain.parse_moment(until, timezone.get_current_timezone_name(), utcnow()).first
        return actions.pause(**named, reason=options["reason"], until=until, by=by)


def _read_user() -> str:
    try:
        return getpass.getuser()[:200]
    except (OSError, KeyError):  # a container without user names
        return ""
