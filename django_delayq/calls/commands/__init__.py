"""Management commands as tasks: the allowed ones, their arguments, and a process of their own for each."""

from .child import run
from .line import build_words, find_refusal, list_helps

COMMAND_TASK = "django_delayq.tasks.management_command"

__all__ = ["COMMAND_TASK", "build_words", "find_refusal", "list_helps", "run"]
