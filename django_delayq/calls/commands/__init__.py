"""Management commands as tasks: the allowed ones, their arguments, and a process of their own for each."""

from .child import run
from .line import command_words, find_refusal, helps

COMMAND_TASK = "django_delayq.tasks.management_command"

__all__ = ["COMMAND_TASK", "command_words", "find_refusal", "helps", "run"]
