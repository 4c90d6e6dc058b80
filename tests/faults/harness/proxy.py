"""A TCP proxy between workers and a server that loses replies, delays, cuts, refuses and falls silent on demand.

Runs in a thread of the test. Knows of Redis only how to find a script's name in a request (its SHA1, or its text).
"""

import asyncio
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from django_delayq.index import scripts

CHUNK = 65536
#: Closing with this option sends a reset instead of an orderly end.
RESET = struct.pack("ii", 1, 0)
#: Replies after which Redis is as it was: the script is not known there; a claim found nothing.
NOTHING_DONE = (b"-NOSCRIPT", b"*4\r\n")


@dataclass(slots=True)
class _Loss:
    """Lose the replies to a script, or its requests: those from the `first` on, `count` of them; None = all."""

    script: str
    first: int
    count: int | None
    silent: bool
    request: bool
    seen: int = 0

    def applies(self) -> bool:
        self.seen += 1
        return self.seen >= self.first and (self.count is None or self.seen < self.first + self.count)


@dataclass(slots=True, eq=False)
class _Link:
    """One connection through the proxy, and what its client has asked since the last reply."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    asked: bytearray = field(default_factory=bytearray)
    mute: bool = False


class Proxy:
    """Listens on a port of its own; `target` is a unix socket's path or (host, port). For use in a `with`."""

    def __init__(self, target: Path | tuple[str, int]) -> None:
        self._target = target
        self._losses: list[_Loss] = []
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._flowing: asyncio.Event | None = None
        self.port = 0
        #: Seconds by which every request is held up.
        self.delay_seconds = 0.0
        #: How many replies to each script were lost.
        self.lost: Counter[str] = Counter()
        self._marks = {name: _marks(name) for name in scripts.NAMES}

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def url(self) -> str:
        """The address for Redis clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def listening(self) -> bool:
        """Whether new connections are served at the moment."""
        return self._listener is not None

    # -- the faults

    def lose(
        self, script: str, *, first: int = 1, count: int | None = 1, silent: bool = False, request: bool = False
    ) -> None:
        """Execute the script but lose its reply: the connection is reset, or says nothing more where `silent`.

        Replies that tell that nothing was done do not count. With `request` it is not even executed.
        """
        if script not in self._marks:
            raise ValueError(f"{script!r} is no script; known: {', '.join(self._marks)}.")
        self._losses.append(_Loss(script, first, count, silent, request))

    def cut(self) -> int:
        """Reset all connections; new ones are served. Return how many there were."""
        return int(self._do(self._cut()))

    def lead_to(self, target: Path | tuple[str, int]) -> None:
        """Have another server take the place of the former one; all connections are reset."""
        self._target = target
        self.cut()

    def half_close(self) -> None:
        """Tell all clients that the server sends nothing more, while their own side stays open."""
        self._do(self._half_close())

    def refuse(self) -> None:
        """Reset all connections and refuse new ones."""
        self._do(self._stop_listening())
        self.cut()

    def accept(self) -> None:
        """Serve again, at the same port."""
        self._do(self._listen())

    def freeze(self) -> None:
        """Fall silent: connections stay, new ones are accepted, no byte passes. A black hole."""
        self._do(self._set_flowing(False))

    def thaw(self) -> None:
        """Let everything pass again, first what was held."""
        self._do(self._set_flowing(True))

    def calm(self) -> None:
        """End every fault but a refusal."""
        self._losses.clear()
        self.delay_seconds = 0.0
        self.thaw()

    # -- in the loop's thread

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _listen(self) -> None:
        if self._flowing is None:
            self._flowing = asyncio.Event()
            self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # Not asyncio.start_server: where it is closed with connections just accepted, nothing ever closes these.
        assert self._listener is not None
        with suppress(BlockingIOError):
            client, _ = self._listener.accept()
            task = self._loop.create_task(self._serve(client))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _close(self) -> None:
        await self._stop_listening()
        await asyncio.sleep(0)  # what was just accepted begins: only then does it close its connection
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def _set_flowing(self, flowing: bool) -> None:
        assert self._flowing is not None
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            _reset(link)
        return len(links)

    async def _half_close(self) -> None:
        for link in list(self._links):
            with suppress(OSError):
                link.client.write_eof()
            link.mute = True

    async def _serve(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            await self._pass(reader, writer)
        except asyncio.CancelledError:  # the proxy ends
            _abort(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._target
        try:
            if isinstance(target, Path):
                up_reader, up_writer = await asyncio.open_unix_connection(str(target))
            else:
                up_reader, up_writer = await asyncio.open_connection(*target)
        except OSError:  # the server is down
            _abort(writer)
            return
        if target != self._target:  # led elsewhere meanwhile: what was open then is cut
            _abort(writer)
            up_writer.close()
            return
        link = _Link(writer, up_writer)
        self._links.add(link)
        try:
            await asyncio.gather(self._requests(link, reader), self._replies(link, up_reader))
        except OSError:
            pass
        except asyncio.CancelledError:  # the proxy ends, whatever a server that was stopped has not read
            _abort(up_writer)
            raise
        finally:
            self._links.discard(link)
            for side in (writer, up_writer):
                side.close()

    async def _requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        assert self._flowing is not None
        while data := await reader.read(CHUNK):
            await self._flowing.wait()
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            link.asked += data
            if (loss := self._loss_for(link, request=True)) is not None:
                self.lost[loss.script] += 1
                _reset(link)
                return
            link.server.write(data)
            await link.server.drain()
        link.server.close()

    async def _replies(self, link: _Link, reader: asyncio.StreamReader) -> None:
        assert self._flowing is not None
        while data := await reader.read(CHUNK):
            await self._flowing.wait()
            loss = None if data.startswith(NOTHING_DONE) else self._loss_for(link, request=False)
            link.asked.clear()
            if loss is not None:
                self.lost[loss.script] += 1
                link.mute = True
                if not loss.silent:
                    _reset(link)
                    return
            if not link.mute:
                link.client.write(data)
                await link.client.drain()
        if not link.mute:
            link.client.close()

    def _loss_for(self, link: _Link, *, request: bool) -> _Loss | None:
        asked = bytes(link.asked)
        for loss in self._losses:
            if loss.request == request and any(mark in asked for mark in self._marks[loss.script]) and loss.applies():
                return loss
        return None


def _marks(script: str) -> tuple[bytes, bytes]:
    """Return what tells a script in the bytes of a request: EVALSHA's digest, EVAL's text."""
    text, sha = scripts.load(script)
    purpose = re.search(r"^-- PURPOSE .*$", text, re.MULTILINE)
    assert purpose is not None
    return sha.encode(), purpose[0].encode()


def _reset(link: _Link) -> None:
    link.mute = True
    _abort(link.client)
    link.server.close()


def _abort(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    with suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
