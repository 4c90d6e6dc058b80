"""`manage.py delayq_import`: import schedules from another scheduler. No logic of its own."""

import json
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_delayq import ledger
from django_delayq.calls import registry
from django_delayq.management.command import DelayQCommand
from django_delayq.models.columns import to_json
from django_delayq.models.differences import RECURRENCE, format_unit
from django_delayq.sources import importing
from django_delayq.sources.importing.command_lines import hide_secrets, hide_words
from django_delayq.text import escape_text, format_iso, redact_arguments

#: Words for an action, before and after it is done.
WORDS = {"create": ("would be created", "created"), "update": ("would be updated", "updated")}
OTHERS = {"same": "unchanged", "keep": "kept as edited here", "skip": "not needed", "refuse": "refused"}


def _parse_mapping(text: str) -> tuple[str, str]:
    pattern, equals, task = text.rpartition("=")
    if not equals or not pattern or not task.replace(".", "_").isidentifier():
        raise ArgumentTypeError(f"{text!r} is not of the form PATTERN=app.tasks.name.")
    return pattern, task


class Command(DelayQCommand):
    """Writes only with `--write`, only schedules of this app, and nothing twice. Needs no Redis."""

    help = "Import schedules from another scheduler; without --write, only show what would be written."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        lines = [f"  {name:<24}{each.source or 'no SOURCE: its tables'}" for name, each in importing.ORIGINS.items()]
        epilog = "ORIGIN and SOURCE:\n" + "\n".join(lines)
        parser = super().create_parser(prog_name, subcommand, epilog=epilog, **kwargs)
        parser.formatter_class = partial(RawDescriptionHelpFormatter, width=110)
        return parser

    def add_arguments(self, parser: ArgumentParser) -> None:
        add, repeated = parser.add_argument, dict[str, Any](action="append", default=[])
        add("origin", choices=list(importing.ORIGINS), metavar="ORIGIN", help="Where from, see below.")
        add("source", nargs="?", default="", metavar="SOURCE", help="What to read there, see below.")
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--dry-run", action="store_true", help="Write nothing: the default.")
        group.add_argument("--write", action="store_true", help="Create and update schedules.")
        group.add_argument(
            "--enable",
            action="store_true",
            help="Read no SOURCE. Enable what --disabled disabled; what was off at the origin stays off.",
        )
        add("--disabled", action="store_true", help="Create the schedules disabled.")
        add("--overwrite", action="store_true", help="Also overwrite schedules that users have edited or created here.")
        task = "Use this task for calls whose name or command matches the pattern (* and ?); the first match wins."
        add("--map", type=_parse_mapping, metavar="PATTERN=TASK", help=task, **repeated)
        add("--only", metavar="PATTERN", help="Import only entries whose name matches. Can be repeated.", **repeated)
        add("--prefix", default="", help="Prefix of the names of the imported schedules.")
        add("--timezone", metavar="ZONE", help="The zone of entries that name none.")
        system = "The crontab has a column for the user, as /etc/crontab."
        add("--system", action="store_true", default=None, help=system)
        add("--json", action="store_true", help="Print one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["enable"] and options["disabled"]:
            raise CommandError("--enable switches on what --disabled has held back. Give one of them.")
        names = ("origin", "only", "prefix", "overwrite", "disabled", "write")
        choices = importing.Choices(**{name: options[name] for name in names}, maps=options["map"])
        read = importing.ORIGINS[choices.origin].read
        ledger.check_tables()
        if options["enable"]:
            self._print_enabled(importing.enable(choices), options)
            return
        entries = read(options["source"], importing.ReadOptions(options["timezone"], options["system"]))
        steps = importing.take_over(entries, choices)
        if options["json"]:
            report = {"origin": choices.origin, "written": choices.write, "entries": list(map(_build_json, steps))}
            self.stdout.write(json.dumps(report))
        else:
            for line in _format_table(steps, written=choices.write):
                self.stdout.write(escape_text(hide_secrets(line)))
            self.stdout.write(f"Differences that concern all entries: docs/coming-over/{choices.origin}.md")
        if refused := sum(step.action == "refuse" for step in steps):
            raise CommandError(f"{refused} of {len(steps)} entries refused: see the reasons above.")

    def _print_enabled(self, names: list[str], options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps({"origin": options["origin"], "enabled": names}))
            return
        for name in names:
            self.stdout.write(escape_text(hide_secrets(f"enabled  {name}")))
        self.stdout.write(f"{len(names)} schedules enabled.")


def _format_table(steps: list[importing.ImportStep], *, written: bool) -> Iterator[str]:
    rows = [(step.action, step.name, *_describe_time(step)) for step in steps]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for step, row in zip(steps, rows, strict=True):
        *cells, last = row
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), last]).rstrip()
        for note in filter(None, [step.reason, *step.entry.notes]):
            yield f"        {note}"
    counts = Counter(step.action for step in steps)
    words = {**{action: pair[written] for action, pair in WORDS.items()}, **OTHERS}
    parts = [f"{counts[action]} {word}" for action, word in words.items() if counts[action]]
    yield f"{len(steps)} entries: {', '.join(parts) or 'nothing to do'}." + ("" if written else " Nothing was written.")


def _describe_time(step: importing.ImportStep) -> tuple[str, str]:
    """Return the recurrence in short form, and the rest of the line."""
    values = {"cron": "", "every": None, "at": None, **(step.values or step.entry.values)}
    when = format_unit(RECURRENCE, values) if "kind" in values else ""
    when += f" {values['timezone']}" if values.get("kind") == "cron" else ""
    if step.values is None:
        return when, step.entry.command or step.entry.task
    following = f"  next {step.next_at:%Y-%m-%d %H:%M:%S}Z" if step.next_at else ""
    return when, f"{values['task']}{'' if values['enabled'] else '  off'}{following}"


def _build_json(step: importing.ImportStep) -> dict[str, Any]:
    schedule = None if step.values is None else to_json(step.values)
    if schedule is not None:
        parameters = registry.find_parameters(schedule["task"])
        args, schedule["kwargs"] = redact_arguments(schedule["args"], schedule["kwargs"], parameters)
        schedule["args"] = hide_words(args)
    return {
        "name": step.name,
        "action": step.action,
        "reason": hide_secrets(step.reason),
        "notes": list(map(hide_secrets, step.entry.notes)),
        "calls": hide_secrets(step.entry.command or step.entry.task),
        "next": format_iso(step.next_at) if step.next_at else None,
        "schedule": schedule,
    }
