"""HTTP requests to the hosts that the settings list, and to no other. Knows no settings.

A host is compared as it stands in the address, with its port where it has one, each time before something is sent. What
its name resolves to is the matter of whoever lists it. Redirects are not followed: they would lead past the list.
"""

from collections.abc import Collection, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from .exceptions import DeliveryFailed
from .spelling import did_you_mean

#: Without TLS only to these: what is sent there does not leave the machine.
LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
LONGEST = 500


class _Unredirected(HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Have an answer that leads elsewhere be an error."""


_open = build_opener(_Unredirected).open


def _is_plain(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url and len(url) <= LONGEST


def find_refusal(url: str, hosts: Collection[str]) -> str:
    """Return why nothing is sent to this address, '' where it is; tells the host, never the rest of the address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "This is no address."
    if not host or not _is_plain(url):
        return f"This is no address such as https://example.com/path, of at most {LONGEST} plain characters."
    if "@" in parts.netloc or parts.fragment:
        return "An address has no user name, password or fragment here."
    listed = parts.netloc.lower()
    if listed not in hosts:
        known = ", ".join(hosts) or "nothing"
        return (
            f"DELAYQ['ALERTS']['HOSTS'] does not list {listed!r}.{did_you_mean(listed, hosts)} It lists {known}. "
            "A host is written with its port where the address has one."
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOCAL):
        where = host if port is None else f"{host}:{port}"
        return f"The address of {where} must begin with https://; only that of this machine may begin with http://."
    return ""


def post(url: str, body: bytes, headers: Mapping[str, str], *, hosts: Collection[str], timeout_seconds: float) -> None:
    """Post a body; returns when the answer is one of success (2xx). Each step of the network has so long.

    Raises:
        DeliveryFailed: The host is not listed, does not answer in time, or answers otherwise. Its message has the host,
            and never the rest of the address, which may be a secret.
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
