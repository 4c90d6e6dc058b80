"""The processes that tasks fork off: they obey signals, never go on as a second worker, and do not outlive this one.

Python's `multiprocessing` forks by default on Linux before Python 3.14.
"""

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

logger = logging.getLogger("django_delayq.worker")


def end_as_child(error: BaseException | None) -> NoReturn:
    """End a child that came back from its task: what follows, outcome and connections, is its parent's."""
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        status = int(error is not None)
        if error is not None:
            logger.error("A process that a task has forked failed.", exc_info=error)
    os._exit(status)


def end_children() -> None:
    """Tell what tasks started by `multiprocessing` and left running to end. Waits for nothing."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        with suppress(Exception):
            child.terminate()
