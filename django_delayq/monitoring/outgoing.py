"""Sends HTTP requests to hosts in an allowlist only. Knows no settings.

Before each request the URL's host, with its port if it has one, is compared with the list. What a listed name resolves
to is not checked. Redirects are not followed, because they would bypass the list.
"""

import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Timer
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from ..conf.alerts import find_refusal
from ..exceptions import DelayQError


class DeliveryFailed(DelayQError):
    """The host is not listed, cannot be reached, or rejects the request."""


class _Unredirected(HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Treat a redirect as an error."""


class _Deadline(HTTPConnection):
    """A connection whose timeout covers the whole request: all addresses of host or proxy, TLS, and the response head.

    A socket's own timeout restarts with each address and each received byte. So a timer shuts the connection down,
    through a duplicate of the socket because TLS takes over the original.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._until = time.monotonic() + (self.timeout or 0.0)
        self._watch: Timer | None = None
        self._create_connection = self._connect_in_time

    def connect(self) -> None:
        try:
            super().connect()
        except (OSError, HTTPException):
            if time.monotonic() >= self._until:
                raise TimeoutError from None
            raise

    def _connect_in_time(self, address: tuple[str, int], *args: Any) -> socket.socket:
        failure: OSError = TimeoutError()
        for family, kind, protocol, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            connected = socket.socket(family, kind, protocol)
            try:
                connected.settimeout(max(0.001, self._until - time.monotonic()))
                connected.connect(place)
            except OSError as error:
                connected.close()
                failure = error
            else:
                self._watched = connected.dup()
                self._watch = Timer(self._until - time.monotonic(), _shut_down, (self._watched,))
                self._watch.daemon = True
                self._watch.start()
                return connected
        raise failure

    def getresponse(self) -> HTTPResponse:
        try:
            return super().getresponse()
        finally:
            self._stop_watch()
            if time.monotonic() >= self._until:
                raise TimeoutError

    def close(self) -> None:
        self._stop_watch()
        super().close()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watched.close()


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):  # already closed
        sock.shutdown(socket.SHUT_RDWR)


class _Bounded:
    def do_open(self, http_class: type[HTTPConnection], *args: Any, **kwargs: Any) -> HTTPResponse:
        bounded = type("Bounded", (_Deadline, http_class), {})
        return super().do_open(bounded, *args, **kwargs)  # type: ignore[misc,no-any-return]


class _HTTP(_Bounded, HTTPHandler):  # type: ignore[misc]
    pass


class _HTTPS(_Bounded, HTTPSHandler):  # type: ignore[misc]
    pass


_open = build_opener(_Unredirected, _HTTP, _HTTPS).open


def post(url: str, body: bytes, headers: Mapping[str, str], *, hosts: Collection[str], timeout_seconds: float) -> None:
    """Post a body and return if the response is a success (2xx); fail after the timeout.

    Raises:
        DeliveryFailed: The host is not listed, does not answer in time, or answers with another status. The message
            has the host and never the rest of the URL, which may be a secret.
    """
    refusal = find_refusal(url, hosts)
    if refusal:
        raise DeliveryFailed(refusal)
    host = urlsplit(url).netloc
    request = Request(url, data=body, headers=dict(headers), method="POST")  # noqa: S310 - its scheme was looked at
    try:
        with _open(request, timeout=timeout_seconds):
            return
    except HTTPError as error:
        error.close()
        said = f"answered {error.code}" + (", a redirect, which is not followed" if 300 <= error.code < 400 else "")
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        said = f"cannot be reached: {type(reason).__name__}"
    raise DeliveryFailed(f"{host} {said}.") from None
