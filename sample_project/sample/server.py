"""Which Redis the sample project uses. A real project has none of this: it sets a URL in its settings."""

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from django_delayq.embedded import URL_VARIABLE, EmbeddedServerUnavailable, get_redis_url, get_shared_url

BASE_DIR = Path(__file__).resolve().parent.parent
#: Set for the processes that `demo` starts. Their stdin is a pipe that only the demo holds.
CHILD_VARIABLE = "SAMPLE_DEMO_CHILD"
LAST_SECONDS = 10


def url() -> str:
    """Return `DELAYQ_REDIS_URL`, or where the embedded server of this project is when it runs."""
    return os.environ.get(URL_VARIABLE) or get_shared_url(_name())


def start_if_needed(arguments: Sequence[str]) -> None:
    """Start the embedded server, or join the one that another terminal has started, for commands that need Redis."""
    command = arguments[0] if arguments else ""
    if not (command in ("demo", "runserver") or command.startswith("delayq_")) or {"-h", "--help"} & set(arguments):
        return
    try:
        get_redis_url(shared_as=_name())
    except EmbeddedServerUnavailable as error:
        sys.exit(str(error))


def end_with_parent() -> None:
    """In a process that `demo` started: end when the demo is gone, even if it was killed with -9.

    The commands that a worker starts inherit the variable, but not the pipe.
    """
    if CHILD_VARIABLE in os.environ and stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_wait_for_parent, name="end-with-parent", daemon=True).start()


def _wait_for_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_SECONDS)
    os._exit(1)


def _name() -> str:
    """Name the server after the project and its database: two databases must not share one prefix in Redis."""
    return f"{BASE_DIR} {os.environ.get('DATABASE_URL', '')}"
