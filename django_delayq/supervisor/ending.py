"""The end of a worker process, bounded in time: whatever its tasks have left running, and whoever does not read it.

Note [Gone for good]
Python ends a process once all its threads have ended, its exit handlers have run and its output is written. What a task
left behind (a thread, a child, a full pipe) makes that wait for ever. By then all is recorded and no lease is held, so
there is nothing to wait for but courtesy: what is left has the rest of the grace.
"""

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

from ..kinds.children import end_children

#: How long the end itself may take, beyond the grace and within the supervisor's MARGIN_SECONDS.
END_SECONDS: Final = 2.0


def end_within(seconds: float, exit_status: int) -> None:
    """End this process so many seconds from now, if it is still there. See Note [Gone for good].

    Returns once what was printed is written.
    """

    def end() -> None:
        time.sleep(seconds)
        end_children()
        os._exit(exit_status)

    threading.Thread(target=end, name="delayq-end", daemon=True).start()
    _flush_streams()  # here that thread can still end it


def end_at_once(exit_status: int) -> NoReturn:
    """End although tasks run. Python would wait for the thread of an `async def` task, however long that takes, and
    meanwhile another worker takes its point over.
    """
    end_children()
    flush(END_SECONDS)
    os._exit(exit_status)


def flush(within_seconds: float) -> None:
    """Write what is logged and printed, as far as it can be written within so many seconds."""
    thread = threading.Thread(target=_flush, daemon=True)
    thread.start()
    thread.join(within_seconds)


def _flush() -> None:
    with suppress(Exception):
        logging.shutdown()
    _flush_streams()


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or another one
            stream.flush()
