"""Tasks of this app itself. They are offered where the settings say so; see `registry`."""

from typing import TYPE_CHECKING, Literal

from . import conf
from .calls import commands
from .calls.compat import task, task_backends
from .monitoring import alerts

if TYPE_CHECKING:
    Command = str
else:  # what the form offers; the settings of a process do not change
    Command = Literal[conf.get_config().commands] if conf.get_config().commands else str


def _queue() -> str:
    """Return a queue that the default backend takes: schedules and `using()` name their own."""
    queues = sorted(task_backends["default"].queues)
    return queues[0] if queues and "default" not in queues else "default"


@task(queue_name=_queue())
def management_command(name: Command, /, *words: str) -> None:
    """Run a management command of those that `DELAYQ["COMMANDS"]` names, in a process of its own.

    Its arguments and options are words as they are typed: `management_command("clearsessions", "--verbosity=2")`. What
    it writes is the run's output. It is ended with all that it has started when the run's time is over, when somebody
    stops it, and when the worker ends.

    Raises:
        InvalidArguments: It is not allowed, does not exist or cannot be called like this; no process was started.
        CommandFailed: Its exit status is not 0.
    """
    commands.run(commands.command_words(name, words))


@task(queue_name=_queue())
def deliver_alert(alert: str, what: str, channel: str) -> None:
    """Send one message of an alert: that it was `opened` or has `recovered`, by `mail` or `webhook`.

    Enqueued by whoever finds it. What was sent already, or was never to be sent, is not sent.

    Raises:
        DeliveryFailed, OSError: The other side cannot be reached, or refuses. It is tried again.
    """
    alerts.deliver(alert, what, channel)
