"""The signals of the supervisor: counted, and able to wake it from a wait. Acts on none of them."""

import contextlib
import os
import signal
import socket
from types import FrameType, TracebackType
from typing import Self


class Alarm:
    """A context, in the main thread. `fileno()` is readable when a signal came in, one of a child's end included.

    `stops` counts the orders to stop, `renewals` those to replace all children (SIGHUP). A terminal that closes sends
    SIGHUP too; so where there is one, SIGHUP is an order to stop.
    """

    def __init__(self) -> None:
        self.stops = self.renewals = 0
        self._has_terminal = os.isatty(0)
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        self._bell, self._ringing = socket.socketpair()
        self._bell.setblocking(False)
        self._ringing.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._ringing.fileno(), warn_on_full_buffer=False)
        for number, handler in (
            (signal.SIGTERM, self._stop),
            (signal.SIGINT, self._stop),
            (signal.SIGHUP, self._stop if self._has_terminal else self._renew),
            (signal.SIGCHLD, lambda *_: None),  # only to be woken
        ):
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._bell.close()
        self._ringing.close()

    def fileno(self) -> int:
        """Return what to wait for."""
        return self._bell.fileno()

    def silence(self) -> None:
        """Wait for the next one."""
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1

    def _renew(self, number: int, frame: FrameType | None) -> None:
        self.renewals += 1
