"""`manage.py delayq_worker`: parse, check, and run one worker, or a supervisor of several. No logic of its own."""

import logging
import os
import sys
import time
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections
from django.utils import autoreload

from django_delayq import conf, ledger
from django_delayq.calls import registry
from django_delayq.calls.capture import capture_output
from django_delayq.calls.compat import task
from django_delayq.calls.side_channels import note_handler_failure
from django_delayq.exceptions import DelayQError
from django_delayq.ledger import bulk
from django_delayq.sync.layout import OutdatedRelease
from django_delayq.worker import http
from django_delayq.worker.logs import TASK_FILTER, JsonFormatter, LineFormatter, LogQueue
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import OUTDATED, RECYCLE, UNFINISHED, WorkerOptions
from django_delayq.worker.process import END_SECONDS, end_at_once, end_within, open_standard_streams
from django_delayq.worker.processes import interpreter
from django_delayq.worker.processes.shutdown import Parent, WorkerSignals
from django_delayq.worker.processes.supervisor import Supervisor

#: Exit status that makes Django's reloader restart the process.
RELOAD = 3

logger = logging.getLogger("django_delayq.worker")


def _parse_count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ArgumentTypeError(f"must be PORT or HOST:PORT, with a port from 1 to 65535, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


class Command(BaseCommand):
    """Runs due work until stopped. SIGTERM, SIGINT and SIGHUP drain; a second SIGTERM or SIGINT ends at once."""

    help = "Run due schedules and jobs. Start as many as you like, on as many machines; all are equal."
    #: Set by Django. A program that uses call_command() must not be started again.
    _called_from_command_line: bool

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--queues", help="Comma-separated; by default all of DELAYQ['QUEUES'].")
        threads = "Number of tasks that each process runs at the same time (default 8)."
        parser.add_argument("--threads", type=_parse_count, default=8, help=threads)
        parser.add_argument(
            "--processes",
            type=_parse_count,
            help="Number of worker processes, each with its own threads; one that ends is started again.",
        )
        parser.add_argument("--burst", action="store_true", help="Run what is due now, then exit.")
        parser.add_argument("--max-runs", type=_parse_count, help="End a process after this many runs.")
        parser.add_argument("--reload", action="store_true", help="Restart when the code changes. For development.")
        parser.add_argument(
            "--metrics",
            type=_parse_address,
            metavar="[HOST:]PORT",
            help="Serve metrics and health by HTTP (HOST: 127.0.0.1); process N uses PORT + N - 1.",
        )
        parser.add_argument("--json-logs", action="store_true", help="Log one JSON object per line.")
        parser.add_argument("--isolated", type=int, nargs=2, help=SUPPRESS)  # by isolated.py: two file descriptors

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Skip database checks, which Django 6.1 would run: a worker waits for an unavailable database."""
        super().check(*args, **{"databases": [], **kwargs})

    def handle(self, *args: Any, **options: Any) -> None:
        if options["isolated"] is not None:
            interpreter.serve(*options["isolated"])
            return
        if self._called_from_command_line:
            open_standard_streams()
        parent = Parent.find_in(os.environ)
        _configure_logging(options, parent)
        worker_options = _read_options(options, parent)
        bulk.prepare(connections[ledger.get_database()])
        if options["reload"]:
            autoreload.run_with_reloader(self._run_reloaded, worker_options)
            return
        try:
            if options["processes"] is not None and parent is None:
                exit_status = self._supervise(worker_options, options["processes"])
            else:
                exit_status = self._run(worker_options, parent)
        except BaseException:
            if self._called_from_command_line:
                end_within(END_SECONDS, UNFINISHED)
            raise
        if exit_status:
            sys.exit(exit_status)

    def _supervise(self, worker_options: WorkerOptions, processes: int) -> int:
        if not self._called_from_command_line:
            raise CommandError(
                "--processes starts the command line of this program once more for each process. "
                "Start manage.py delayq_worker itself, not call_command()."
            )
        with LogQueue():
            exit_status = Supervisor(processes, burst=worker_options.burst).run()
        end_within(END_SECONDS, exit_status)
        return exit_status

    def _run(self, worker_options: WorkerOptions, parent: Parent | None) -> int:
        with LogQueue(direct=not self._called_from_command_line) as log:
            worker = _build_worker(worker_options)
            signals = WorkerSignals(worker, supervised=parent is not None)
            signals.obey()
            if parent is not None:
                parent.watch(signals.drain)
            try:
                exit_status = _work(worker, log)
            finally:
                if not self._called_from_command_line:
                    signals.restore()
        if not self._called_from_command_line:
            return exit_status
        signals.end_drain(exit_status)
        if worker.slots.running:
            end_at_once(exit_status)
        # Leftovers of tasks get the rest of the grace, except after an abort or if the log is stuck.
        grace = 0.0 if worker.aborted or log.stuck else max(0.0, worker.grace_ends_at - time.monotonic())
        end_within(grace + END_SECONDS, exit_status)
        return exit_status

    def _run_reloaded(self, worker_options: WorkerOptions) -> None:
        """Run in the reloader's thread. An error is printed, and the next change of the code restarts."""
        with LogQueue(direct=True) as log:
            exit_status = _work(_build_worker(worker_options), log)
        if exit_status == RECYCLE:
            sys.stdout.flush()
            os._exit(RELOAD)


def _build_worker(worker_options: WorkerOptions) -> Worker:
    tasks, queues = len(registry.get_tasks()), ", ".join(worker_options.queues)
    worker = Worker(worker_options)
    text = "Worker %s: queues %s, %d threads, %d tasks known."
    logger.info(text, worker_options.name, queues, worker_options.threads, tasks)
    return worker


def _work(worker: Worker, log: LogQueue) -> int:
    host, port = worker.options.metrics_host, worker.options.metrics_port
    try:
        server = http.Server(host, port, http.build_pages(worker)) if port else nullcontext()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"--metrics cannot listen on {host}:{port}: {reason}. Name another.") from error
    try:
        with server, capture_output(conf.get_config().max_output_bytes, log.put):
            return worker.run()
    except (DelayQError, DatabaseError) as error:
        outdated = isinstance(error, OutdatedRelease)
        raise CommandError(str(error), returncode=OUTDATED if outdated else UNFINISHED) from error


def _configure_logging(options: dict[str, Any], parent: Parent | None) -> None:
    """Log to standard output, unless the project has configured our loggers itself."""
    logging.getLogger(task.__module__.rpartition(".")[0]).addFilter(TASK_FILTER)
    ours = logging.getLogger("django_delayq")
    if ours.handlers:
        return
    handler = _Handler(sys.stdout)
    process = None if parent is None else parent.number
    handler.setFormatter(JsonFormatter(process) if options["json_logs"] else LineFormatter(process))
    ours.addHandler(handler)
    ours.propagate = False
    levels = {0: logging.WARNING, 1: logging.INFO}
    ours.setLevel(levels.get(options["verbosity"], logging.DEBUG))


class _Handler(logging.StreamHandler[Any]):
    """Reports a failure of standard output once, not for each record."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            note_handler_failure(error)


def _read_options(options: dict[str, Any], parent: Parent | None) -> WorkerOptions:
    config = conf.get_config()
    queues = config.queues
    if options["metrics"] is not None:
        try:
            import_module("django_delayq.monitoring.metrics")
        except ImproperlyConfigured as error:
            raise CommandError(f"--metrics: {error}") from error
    if options["reload"] and (options["burst"] or options["processes"] is not None):
        raise CommandError("--reload is for development with one process: use it without --processes and --burst.")
    if options["queues"] is not None:
        queues = tuple(dict.fromkeys(name.strip() for name in options["queues"].split(",")))
        for name in queues:
            if name not in config.queues:
                known = ", ".join(config.queues)
                raise CommandError(f"No setting names the queue {name!r}; DELAYQ['QUEUES'] has {known}.")
    if not config.mirror:
        raise CommandError(f"{conf.explain_no_redis()}: nothing reaches Redis, so there is nothing to run.")
    host, port = options["metrics"] or ("", None)
    if port and port + (options["processes"] or 1) - 1 > 65535:
        raise CommandError(f"--metrics {port} leaves no port for {options['processes']} processes. Name a lower one.")
    return WorkerOptions(
        queues=queues,
        threads=options["threads"],
        burst=options["burst"],
        max_runs=options["max_runs"],
        metrics_port=port and port + (0 if parent is None else parent.number - 1),
        metrics_host=host,
    )
