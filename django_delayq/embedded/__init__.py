"""A Redis of one's own for demo and tests: finds a server binary, starts it on a private unix socket, removes it again.

Never opens a TCP port, never serves production, is never started by `AppConfig.ready()`, and needs neither Django nor
redis-py. POSIX only.
"""

import atexit
import contextlib
import os

from .binary import URL_VARIABLE, EmbeddedServerUnavailable, find_server
from .home import shared_home
from .server import EmbeddedServer, url_of

__all__ = [
    "URL_VARIABLE", "EmbeddedServer", "EmbeddedServerUnavailable", "find_server", "redis_url", "shared_server",
    "shared_url",
]  # fmt: skip


def redis_url(shared_as: str | None = None) -> str:
    """Return `DELAYQ_REDIS_URL`; where it is not set, start an embedded server for the life of this process.

    The variable is then set, so that child processes use the same server. With `shared_as`, all processes of this user
    that name the same text share one server, which lives as long as one of them.

    Raises:
        EmbeddedServerUnavailable: No server is given, and none can be started.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    server = EmbeddedServer() if shared_as is None else shared_server(shared_as)
    server.start()
    atexit.register(_leave, server)
    os.environ[URL_VARIABLE] = server.url
    return server.url


def _leave(server: EmbeddedServer) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # an impatient Ctrl-C: the watchdog does the rest without us
        server.stop()


def shared_server(name: str) -> "EmbeddedServer":
    """Return the server that all processes of this user share under a name, not yet started or joined."""
    return EmbeddedServer(home=shared_home(name))


def shared_url(name: str) -> str:
    """Return where the shared server of a name is, if it runs. Touches nothing."""
    return url_of(shared_home(name))
