"""What stands between a broker and the real server: loses, delays and repeats requests, and sees who holds what.

It executes the real scripts. It knows who claimed each member last, which no script tells, and so can say of every
request whether its sender had a right to change what it changed.
"""

import json
from dataclasses import dataclass
from typing import Any

from redis import exceptions as errors

from django_delayq.index import EXACT, keys, scripts

#: Scripts whose members name a fence.
BY_FENCE = ("settle", "renew")


def plain(value: Any) -> str:
    """Return an argument or reply as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass
class Request:
    """One script call, as it was sent."""

    name: str
    owner: str
    keys: list[str]
    args: list[Any]
    #: How often Redis had lost something when it was sent.
    losses: int
    #: The monotonic second at which it was sent.
    sent: float
    #: Whether the server has executed it.
    delivered: bool = False
    #: Whether its sender waits for the reply.
    awaited: bool = False

    @property
    def repeats_itself(self) -> bool:
        """Say whether a copy would overtake it, or follow it before its reply, where that is not provided for.

        No network does so: what is sent once more is sent after the first one was given up.
        """
        return self.awaited and self.name == "claim" and self.delivered

    @property
    def kind(self) -> str:
        """The script's name; of an upsert that mirrors an end `remove`."""
        return "remove" if self.mode in ("end", "gone") else self.name

    @property
    def mode(self) -> str:
        """How it mirrors, where it is an upsert: see upsert.lua."""
        return plain(self.args[1]) if self.name == "upsert" else ""

    @property
    def by_member(self) -> bool:
        """True where it changes no member that another worker holds, nor any that it does not name."""
        return self.name in BY_FENCE or self.mode in ("new", "move")

    @property
    def shard(self) -> str:
        """The tag of the shard."""
        return plain(self.keys[0]).removesuffix(":due")

    @property
    def forces(self) -> bool:
        """True where it acts against the generations: a late one puts the past in place of the present."""
        if self.kind == "remove":
            return any(int(row[1]) >= EXACT for row in self.items())
        return self.name == "upsert" and (self.mode == "reset" or any(row[4] for row in self.items()))

    def items(self) -> list[list[str]]:
        """Return what it has of each member, as texts."""
        return [list(map(str, row)) for row in json.loads(self.args[-1])]


class Wire:
    """A redis client for one process, named `owner`."""

    def __init__(self, world: Any, owner: str) -> None:
        self._world = world
        self._owner = owner
        self._client = world.stage.client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def time(self) -> tuple[int, int]:
        """Return the injected server time."""
        now = self._world.clock.server_ms()
        return now // 1000, now % 1000 * 1000

    def set(self, name: str, value: str, *, px: int | None = None, **options: Any) -> Any:
        """Set a key; what expires does so by the clock of the history."""
        found = self._client.set(name, value, px=px, **options)
        if px is not None and found:
            self._world.marks[name.encode()] = self._world.clock.elapsed_ms + px
        return found

    def getex(self, name: str, *, px: int) -> Any:
        """Read a key and renew it."""
        self._world.marks[name.encode()] = self._world.clock.elapsed_ms + px
        return self._client.getex(name, px=px)

    def pttl(self, name: str) -> int:
        """Return for how many ms of the history's clock a key stands."""
        left = self._world.marks.get(name.encode(), 0) - self._world.clock.elapsed_ms
        return max(-1, left) if self._client.exists(name) else -2

    def pipeline(self, transaction: bool = True) -> "Pipeline":
        """Return a pipeline whose scripts go one by one: the connection can break in its middle."""
        return Pipeline(self, self._client.pipeline(transaction=transaction))

    def execute_command(self, command: str, *values: Any) -> Any:
        """Send a script, through the faults of this step; anything else goes straight on."""
        if command != "EVALSHA":
            return self._client.execute_command(command, *values)
        sha, count, *rest = values
        world, name = self._world, self._world.stage.names[plain(sha)]
        request = Request(name, self._owner, rest[:count], rest[count:], world.losses, world.clock.monotonic())
        world.requests.append(request)
        request.awaited = True
        try:
            world.seam(f"send:{request.kind}", self._owner)
            reply = deliver(world, request)
            world.seam(f"reply:{request.kind}", self._owner, request=request, reply=reply)
        finally:
            request.awaited = False
        world.holders.reply_arrived(request, reply)
        return reply


class Pipeline:
    """Reads go to the server in one piece, scripts each through the faults of this step. The package never mixes."""

    def __init__(self, wire: Wire, real: Any) -> None:
        self._wire = wire
        self._real = real
        self._scripts: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute_command(self, *call: Any) -> None:
        """Queue a script."""
        self._scripts.append(call)

    def execute(self, **options: Any) -> list[Any]:
        """Send what was queued."""
        queued, self._scripts = self._scripts, []
        return [self._wire.execute_command(*call) for call in queued] or self._real.execute(**options)


def deliver(world: Any, request: Request, *, late: bool = False) -> Any:
    """Execute a request on the server, and check what only here can be seen."""
    before = world.holders.look(request) if request.by_member or request.name == "claim" else None
    text, sha = scripts.load(request.name)
    client = world.stage.client
    try:
        reply = client.evalsha(sha, len(request.keys), *request.keys, *request.args)
    except errors.NoScriptError:
        reply = client.eval(text, len(request.keys), *request.keys, *request.args)
    request.delivered = True
    if before is not None:
        world.holders.check(request, before, reply, late=late)
    if request.name == "epoch" and plain(request.args[2]) != "0" and reply == 1:
        world.marks[request.keys[keys.PARTS.index("epoch")]] = world.clock.elapsed_ms + int(request.args[2])
    return reply


def lost() -> Exception:
    """Return the error of a connection that broke."""
    return errors.ConnectionError("lost in the simulation")
