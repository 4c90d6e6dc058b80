"""A worker's end of the line to its supervisor: tells how it is, and notices when the supervisor is gone.

Note [The line]
A pair of sockets, of which the child holds one end and nobody but the supervisor the other. The child says the words of
`status.py`, and ALIVE now and then; it is told nothing, orders are signals. When the supervisor ends in whatever way,
the kernel closes its end, and the child reads the end of the stream. This works on every POSIX system, and also if the
supervisor was killed before the child began to look.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final, Self

from ..worker.status import UNFINISHED

logger = logging.getLogger("django_delayq.worker")

#: Holds "descriptor number", for a worker process that has a supervisor.
VARIABLE: Final = "DELAYQ_WORKER_LINE"
ALIVE: Final = "alive"


def announced(environment: Mapping[str, str], descriptor: int, number: int) -> dict[str, str]:
    """Return the environment of the child `number`, which inherits the descriptor."""
    return {**environment, VARIABLE: f"{descriptor} {number}"}


class Line:
    """The line of this process. `number` is its place under the supervisor, from 1."""

    def __init__(self, descriptor: int, number: int) -> None:
        """Take over the descriptor.

        Raises:
            OSError: It is no socket.
        """
        self.number = number
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)

    @classmethod
    def found_in(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Return the line of this process, or None where it has no supervisor.

        Takes it out of the environment: what a task starts is no child of our supervisor.
        """
        text = environment.pop(VARIABLE, "")
        try:
            descriptor, number = map(int, text.split())
            return cls(descriptor, number)
        except (ValueError, OSError):  # not there, or left over from a process that did not start us
            return None

    def tell(self, word: str) -> None:
        """Say a word to the supervisor, if it listens. Never blocks, never raises."""
        with contextlib.suppress(OSError):
            self._socket.send(f"{word}\n".encode(), socket.MSG_DONTWAIT)

    def watch(self, gone: Callable[[], None], *, beat_seconds: float, last_seconds: float) -> None:
        """Say ALIVE every `beat_seconds`, and call `gone` once the supervisor is gone. In a thread of its own.

        So a process that says nothing is one in which no thread runs. Whatever still runs `last_seconds` after the
        supervisor's end ends with the process.
        """
        self._socket.settimeout(beat_seconds)

        def look() -> None:
            while self._supervisor_is_there():
                self.tell(ALIVE)
            logger.warning("The supervisor is gone: this worker drains and ends.")
            gone()
            time.sleep(last_seconds)
            os._exit(UNFINISHED)

        threading.Thread(target=look, name="delayq-line", daemon=True).start()

    def _supervisor_is_there(self) -> bool:
        try:
            return self._socket.recv(64) != b""
        except TimeoutError:
            return True
        except OSError:
            return False
