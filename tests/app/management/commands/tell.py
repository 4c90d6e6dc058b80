"""A command that says, waits, forks and fails as it is asked to."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    """See its arguments."""

    help = "Say words."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs="*")
        parser.add_argument("--exit-status", type=int, default=0)
        parser.add_argument("--seconds", type=float, default=0)
        parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
        parser.add_argument("--tag", action="append")
        parser.add_argument("--pids", help="where to write its own id and that of a child which does not end")
        parser.add_argument("--megabytes", type=int, default=0)
        parser.add_argument("--fail", help="the text of a CommandError")

    def handle(self, **options: Any) -> None:
        if options["stubborn"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        bytearray(options["megabytes"] * 1024 * 1024)
        self.stdout.write(f"said {' '.join(options['words'])} in {os.environ['DJANGO_SETTINGS_MODULE']}")
        sys.stderr.write("to stderr\n")
        self.stdout.flush()
        if options["pids"]:
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(600)
                os._exit(0)
            path = Path(options["pids"])
            path.with_suffix(".part").write_text(f"{os.getpid()} {os.getppid()} {child}")
            path.with_suffix(".part").rename(path)
        time.sleep(options["seconds"])
        if options["fail"]:
            raise CommandError(options["fail"])
        sys.exit(options["exit_status"])
