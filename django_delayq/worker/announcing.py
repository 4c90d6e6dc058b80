"""Tells the log and the receivers of signals what becomes of due points. Writes nothing."""

from django.dispatch import Signal

from .. import ledger
from ..ledger import Outcome
from ..models import Schedule, Status
from ..rows import RunRow, ScheduleRow
from ..signals import run_finished, run_skipped
from .logs import log_run


def announce(outcome: Outcome) -> None:
    """Log a recorded row and send its signal."""
    run = outcome.run
    if run.status == Status.QUEUED:
        return
    log_run(run)
    if run.status == Status.SKIPPED:
        send(run_skipped, run, outcome.schedule)
    elif not Status(run.status).is_open:
        send(run_finished, run, outcome.schedule)


def send(signal: Signal, run: RunRow, schedule: ScheduleRow) -> None:
    """Send one of the public signals of runs; instances are made where somebody receives it only."""
    if signal.has_listeners(Schedule):
        signal.send_robust(sender=Schedule, run=ledger.as_run(run), schedule=ledger.as_schedule(schedule))
