"""`manage.py delayq_worker`: parse, check, and run one worker. No logic of its own."""

import logging
import signal
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils import autoreload

from django_delayq import conf, registry
from django_delayq.exceptions import DelayQError
from django_delayq.worker import Worker, WorkerOptions
from django_delayq.worker.collector import calm_collector
from django_delayq.worker.logs import JsonFormatter, LineFormatter


class Command(BaseCommand):
    """Runs what is due, until stopped. SIGTERM and SIGINT drain; a second one ends at once."""

    help = "Run due schedules. Start as many as you like, on as many machines; all are equal."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--queues", help="Comma-separated; by default all of DELAYQ['QUEUES'].")
        parser.add_argument("--threads", type=int, default=8, help="Tasks run at the same time (default 8).")
        parser.add_argument("--burst", action="store_true", help="Run what is due now, then exit.")
        parser.add_argument("--max-runs", type=int, help="Exit after this many runs.")
        parser.add_argument("--reload", action="store_true", help="Restart when the code changes. For development.")
        parser.add_argument("--json-logs", action="store_true", help="Log one JSON object per line.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run, and exit with the worker's status."""
        self._log(options)
        worker_options = _worker_options(options)
        if options["reload"]:
            autoreload.run_with_reloader(self._run, worker_options, signals=False)
            return
        status = self._run(worker_options, signals=True)
        if status:
            sys.exit(status)

    def _run(self, worker_options: WorkerOptions, *, signals: bool) -> int:
        logger = logging.getLogger("django_delayq.worker")
        tasks = len(registry.get_tasks())
        worker = Worker(worker_options)
        calm_collector()
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: worker.stop())
        logger.info(
            "Worker %s: queues %s, %d threads, %d tasks known.",
            worker_options.name,
            ", ".join(worker_options.queues),
            worker_options.threads,
            tasks,
        )
        try:
            return worker.run()
        except (DelayQError, DatabaseError) as error:
            raise CommandError(str(error)) from error

    def _log(self, options: dict[str, Any]) -> None:
        """Log to standard output, unless the project has configured our loggers itself."""
        logger = logging.getLogger("django_delayq")
        if logger.handlers:
            return
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(JsonFormatter() if options["json_logs"] else LineFormatter())
        logger.addHandler(handler)
        logger.propagate = False
        levels = {0: logging.WARNING, 1: logging.INFO}
        logger.setLevel(levels.get(options["verbosity"], logging.DEBUG))


def _worker_options(options: dict[str, Any]) -> WorkerOptions:
    config = conf.get_config()
    queues = config.queues
    if options["burst"] and options["reload"]:
        raise CommandError("--burst ends by itself and --reload never does: use one of them.")
    if options["queues"] is not None:
        queues = tuple(dict.fromkeys(name.strip() for name in options["queues"].split(",")))
        for name in queues:
            if name not in config.queues:
                known = ", ".join(config.queues)
                raise CommandError(f"No setting names the queue {name!r}; DELAYQ['QUEUES'] has {known}.")
    if not 1 <= options["threads"] <= 1000:
        raise CommandError(f"--threads must be from 1 to 1000, not {options['threads']}.")
    if options["max_runs"] is not None and options["max_runs"] < 1:
        raise CommandError(f"--max-runs must be at least 1, not {options['max_runs']}.")
    if not config.mirror:
        raise CommandError("DELAYQ['MIRROR'] is False, so nothing reaches Redis and there is nothing to run.")
    return WorkerOptions(
        queues=queues, threads=options["threads"], burst=options["burst"], max_runs=options["max_runs"]
    )
