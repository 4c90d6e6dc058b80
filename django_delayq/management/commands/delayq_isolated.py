"""`manage.py delayq_isolated`: the process of one isolated task. See `worker/processes/isolated.py`."""

import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_delayq.worker.processes import interpreter


class Command(BaseCommand):
    """Executes one task, which it is told by a socket, and ends."""

    help = "Execute one isolated task. Started by delayq_worker; of no use by hand."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the two descriptors that the worker has opened for it."""
        parser.add_argument("channel", type=int)
        parser.add_argument("heard", type=int)

    def handle(self, *args: Any, channel: int, heard: int, **options: Any) -> None:
        """Execute it."""
        try:
            os.set_inheritable(channel, False)
            os.set_inheritable(heard, False)
        except OSError as error:
            message = f"delayq_worker starts this itself, for tasks with isolation='process': {error}"
            raise CommandError(message) from error
        interpreter.serve(channel, heard)
