"""Servers that a test may flush, kill and start again: the embedded binary, with or without an append-only file."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from django.conf import settings
from django.test import override_settings

from django_delayq.embedded import EmbeddedServer
from django_delayq.index import Broker
from tests.acceptance.support import wait_until

#: A server looks at its signals ten times a second, and so ends a tenth of a second after it was told to. More often
#: here: most tests that have a server of their own take less.
BRISK = ("--hz", "100")


class Server:
    """One server at one address. With `directory` it keeps an append-only file there: a restart has the data."""

    def __init__(self, directory: Path | None = None, extra_args: Sequence[str] = ()) -> None:
        kept = () if directory is None else ("--dir", str(directory), "--appendonly", "yes")
        self._embedded = EmbeddedServer(extra_args=(*BRISK, *kept, *extra_args))

    def __enter__(self) -> Self:
        self._embedded.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._embedded._watchdog is not None:  # it sleeps between two looks for longer than most of the tests take
            self._embedded._watchdog.terminate()
        self._embedded.stop()

    @property
    def url(self) -> str:
        """The address, the same after a restart."""
        return self._embedded.url

    @property
    def socket(self) -> Path:
        """The unix socket, what a proxy connects to."""
        return self._embedded.socket

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._embedded.pid

    def kill(self) -> None:
        """Kill -9 the server and return when it is gone."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _runs(pid) and not self.socket.parent.exists(), 10, "the end of the server")

    def stop(self) -> None:
        """Shut the server down."""
        self._embedded.stop()

    def start(self) -> None:
        """Start it again at the same address: empty, or with its append-only file."""
        self._embedded.start()

    def flush(self) -> None:
        """FLUSHALL."""
        with self.broker() as broker:
            broker.client.flushall()

    @contextmanager
    def broker(self, url: str | None = None) -> Iterator[Broker]:
        """Lend a broker of our own to this server, past every proxy."""
        with pointing_at(url or self.url):
            broker = Broker(timeout_seconds=5, worker="test")
        try:
            yield broker
        finally:
            broker.close()


@contextmanager
def pointing_at(url: str) -> Iterator[None]:
    """Let this process (its saves and edits) and the workers it starts use the server at `url`."""
    default = {**settings.CACHES["default"], "LOCATION": url, "OPTIONS": {}}
    with override_settings(CACHES={**settings.CACHES, "default": default}):
        yield


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
