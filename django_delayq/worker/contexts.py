"""What an execution finds around it: nothing that another one has left behind in its thread.

Note [A context of its own]
Each execution runs in a copy of its thread's context, which is empty, and the copy is thrown away: language, time zone,
decimal context and context variables last until the end of the execution that sets them, receivers of its signals
included. What Django keeps there on purpose are the clients of caches and the backends of tasks. Made anew for each
execution, they would connect each time; so each thread makes them once, before its first execution. The locale is the
whole process': a task that sets it changes it for what runs beside it, and it is put back when the next execution ends.
Out of reach is what a task stores in a `threading.local`, a module, the environment or the working directory.
"""

import locale
import logging
from contextlib import suppress
from contextvars import copy_context

from django.core.cache import caches
from django.db import close_old_connections

from ..compat import task_backends
from ..kinds import Held
from ..kinds.connections import forget_connections, tidy_connections

logger = logging.getLogger("django_delayq.worker")


def prepare_thread() -> None:
    """Make what all executions of this thread share. See Note [A context of its own]."""
    for handler in (caches, task_backends):
        for alias in handler:
            with suppress(Exception):  # whoever uses it is told
                handler[alias]


def leave_thread() -> None:
    """Close what this thread has opened."""
    forget_connections()


class Contexts:
    """Of one worker; made before its first execution, in the locale that all are to find."""

    def __init__(self) -> None:
        self._locale = locale.setlocale(locale.LC_ALL)

    def execute(self, held: Held) -> bool:
        """Execute an entry in a context of its own. See Note [A context of its own] and `kinds/connections.py`."""
        close_old_connections()
        try:
            return copy_context().run(held.kind.execute, held)
        finally:
            tidy_connections()
            if locale.setlocale(locale.LC_ALL) != self._locale:
                self._put_back()

    def _put_back(self) -> None:
        logger.warning("A task has changed the locale of the whole process; it is put back.")
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, self._locale)
