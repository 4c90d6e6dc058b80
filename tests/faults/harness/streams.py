"""Standard streams of workers that cannot be written: full, unread, closed, or with a reader that is gone."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def full() -> Iterator[IO[bytes]]:
    """A disk that is full."""
    with Path("/dev/full").open("wb", buffering=0) as output:
        yield output


@contextmanager
def unread() -> Iterator[IO[bytes]]:
    """A pipe that is full and that nobody reads."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0) as output:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            output.write(b"x" * fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
        os.set_blocking(writing, True)
        yield output


@contextmanager
def gone() -> Iterator[IO[bytes]]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as output:
        yield output


#: By what the other side channels do: standard output and error, and what a shell does with them at the start.
STREAMS: dict[str, tuple[Callable[[], AbstractContextManager[IO[bytes]]], str]] = {
    "raises": (full, ""),
    "blocks": (unread, ""),
    "gone": (gone, ">&-"),
}
