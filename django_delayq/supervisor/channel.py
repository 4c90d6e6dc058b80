"""How a worker and its supervisor notice that the other is gone or hangs.

Note [The channel]
A pair of sockets, of which the child holds one end and nobody but the supervisor the other. The child sends a byte now
and then; it is told nothing, orders are signals. When the supervisor ends in whatever way, the kernel closes its end,
and the child reads the end of the stream. This works on every POSIX system, and also if the supervisor was killed
before the child began to look.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Final, Self

from .. import conf
from ..worker.options import UNFINISHED
from .process import MARGIN_SECONDS

logger = logging.getLogger("django_delayq.worker")

#: Holds "descriptor number", for a worker process that has a supervisor.
VARIABLE: Final = "DELAYQ_WORKER_LINE"


class Channel:
    """A worker's end. `number` is that of its process among those of the supervisor, from 1."""

    def __init__(self, descriptor: int, number: int) -> None:
        self.number = number
        self._socket = socket.socket(fileno=descriptor)  # an OSError where it is none
        self._socket.set_inheritable(False)

    @classmethod
    def found_in(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Return the channel of this process, or None where it has no supervisor.

        Takes it out of the environment: what a task starts is no child of our supervisor.
        """
        text = environment.pop(VARIABLE, "")
        try:
            descriptor, number = map(int, text.split())
            return cls(descriptor, number)
        except (ValueError, OSError):  # not there, or left over from a process that did not start us
            return None

    def watch(self, gone: Callable[[], None]) -> None:
        """Send a byte again and again, and call `gone` once the supervisor is gone. In a thread of its own.

        So a process that sends nothing is one in which no thread runs. What has not drained in time then ends with the
        process.
        """
        config = conf.get_config()
        self._socket.settimeout(min(5.0, config.lease_seconds / 6))

        def look() -> None:
            while self._supervisor_is_there():
                with contextlib.suppress(OSError):
                    self._socket.send(b".", socket.MSG_DONTWAIT)
            logger.warning("The supervisor is gone: this worker drains and ends.")
            gone()
            time.sleep(config.drain_seconds + MARGIN_SECONDS)
            os._exit(UNFINISHED)

        threading.Thread(target=look, name="delayq-channel", daemon=True).start()

    def _supervisor_is_there(self) -> bool:
        try:
            return self._socket.recv(64) != b""
        except TimeoutError:
            return True
        except OSError:
            return False
