"""Sends HTTP requests to hosts in an allowlist only. Knows no settings.

What a listed name resolves to is not checked. Redirects are not followed, because they would bypass the list.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from http.client import HTTPException
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ..conf.alerts import find_refusal
from ..exceptions import DelayQError


class DeliveryFailed(DelayQError):
    """The host is not listed, cannot be reached, or rejects the request."""


class _Unredirected(HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Treat a redirect as an error."""


def post(url: str, body: bytes, headers: Mapping[str, str], *, hosts: Collection[str], timeout_seconds: float) -> None:
    """Post a body. Raises DeliveryFailed unless the host is listed and answers with a success (2xx) in time.

    The error has the host and never the rest of the URL, which may be a secret. The request has a thread, which is
    abandoned after the timeout: a socket's timeout restarts with each address and each byte.
    """
    refusal = find_refusal(url, hosts)
    if refusal:
        raise DeliveryFailed(refusal)
    request = Request(url, data=body, headers=dict(headers), method="POST")  # noqa: S310 - its scheme was looked at
    answered: Future[str] = Future()

    def send() -> None:
        answered.set_result(_send(request, timeout_seconds))

    Thread(target=copy_context().run, args=(send,), name="delayq-post", daemon=True).start()
    try:
        failure = answered.result(timeout_seconds)
    except TimeoutError:
        failure = "cannot be reached: TimeoutError"
    if failure:
        raise DeliveryFailed(f"{urlsplit(url).netloc} {failure}.")


def _send(request: Request, timeout_seconds: float) -> str:
    """Return why the request failed, or ''."""
    try:
        build_opener(_Unredirected).open(request, timeout=timeout_seconds).close()
    except HTTPError as error:
        error.close()
        return f"answered {error.code}" + (", a redirect, which is not followed" if 300 <= error.code < 400 else "")
    except (URLError, OSError, HTTPException, ValueError) as error:
        return f"cannot be reached: {type(getattr(error, 'reason', error)).__name__}"
    return ""
