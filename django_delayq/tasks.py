"""The tasks of this app. The settings decide whether they are offered; see `registry`."""

from typing import TYPE_CHECKING, Literal

from . import conf
from .calls import commands
from .calls.compat import task, task_backends
from .monitoring import alerts

if TYPE_CHECKING:
    Command = str
else:  # what the form offers; the settings of a process do not change
    Command = Literal[conf.get_config().commands] if conf.get_config().commands else str


def _find_queue() -> str:
    """Return a queue that the default backend accepts. Schedules and `using()` set their own."""
    queues = sorted(task_backends["default"].queues)
    return queues[0] if queues and "default" not in queues else "default"


@task(queue_name=_find_queue())
def management_command(name: Command, /, *words: str) -> None:
    """Run a management command of those that `DELAYQ["COMMANDS"]` lists, in a process of its own.

    Its arguments and options are words as typed: `management_command("clearsessions", "--verbosity=2")`. The output of
    the command is the output of the run. The command and its child processes are ended at the timeout, when a user
    stops the run, and when the worker ends. Raises InvalidArguments, without starting a process, if the call is not
    allowed, CommandFailed if the exit status is not 0.
    """
    commands.run(commands.build_words(name, words))


@task(queue_name=_find_queue())
def deliver_alert(alert: str, what: str, channel: str) -> None:
    """Send one message of an alert: that it was `opened` or has `recovered`, by `mail` or `webhook`.

    A message that was sent already, or is not to be sent, is skipped. Raises DeliveryFailed or OSError if the receiver
    is unreachable or refuses the message; the job is then retried.
    """
    alerts.deliver(alert, what, channel)
