"""An embedded Redis for demos and tests: finds a server binary, starts it on a private unix socket, and removes it.

Never opens a TCP port, never serves production, starts only on request; needs neither Django nor redis-py. POSIX only.
"""

import atexit
import contextlib
import os

from .server import URL_VARIABLE, EmbeddedServer, EmbeddedServerUnavailable, find_server, format_url, get_shared_home

__all__ = [
    "URL_VARIABLE", "EmbeddedServer", "EmbeddedServerUnavailable", "find_server", "get_redis_url", "get_shared_server",
    "get_shared_url",
]  # fmt: skip


def get_redis_url(shared_as: str | None = None) -> str:
    """Return `DELAYQ_REDIS_URL`; if it is not set, start an embedded server for the life of this process.

    The variable is then set for child processes. With `shared_as`, all processes of this user with the same text share
    one server, which ends with the last of them. Raises EmbeddedServerUnavailable if no server can be started.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    server = EmbeddedServer() if shared_as is None else get_shared_server(shared_as)
    server.start()
    atexit.register(_leave, server)
    os.environ[URL_VARIABLE] = server.url
    return server.url


def _leave(server: EmbeddedServer) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: the watchdog does the rest
        server.stop()


def get_shared_server(name: str) -> "EmbeddedServer":
    """Return the server that this user's processes share under a name, not yet started or joined."""
    return EmbeddedServer(home=get_shared_home(name))


def get_shared_url(name: str) -> str:
    """Return the URL of a shared server, whether or not it runs. Touches nothing."""
    return format_url(get_shared_home(name))
