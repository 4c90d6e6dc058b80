"""Management commands as tasks: which may run, what they are called with, and a process of their own for each."""

from .line import command_words, find_refusal, helps
from .process import run

#: The task that runs them.
COMMAND_TASK = "django_delayq.tasks.management_command"

__all__ = ["COMMAND_TASK", "command_words", "find_refusal", "helps", "run"]
