"""The setting `DELAYQ["ALERTS"]`: which problems are reported, and to whom. Reads no settings."""

import base64
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from ..text import suggest_name
from .rules import BOOLEAN, Rule, number, read_settings, setting, text, texts

_PREFIX = "whsec_"
#: Hosts that need no TLS, because the data stays on the machine.
LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
LONGEST = 500


def _is_secret(value: Any) -> bool:
    try:
        return value == "" or 24 <= len(decode_secret(value)) <= 64
    except (ValueError, AttributeError, TypeError):
        return False


def decode_secret(secret: str) -> bytes:
    """Return the key encoded in a text such as `whsec_…`; ValueError if it is not one."""
    if not secret.startswith(_PREFIX):
        raise ValueError(f"A secret begins with {_PREFIX}.")
    return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)


_ADDRESSES = texts(re.compile(r"[^\s@]+@[^\s@]+"), "")
_MAIL = Rule("True (to ADMINS), False or a list of addresses", lambda v: BOOLEAN.holds(v) or _ADDRESSES.holds(v))
_WEBHOOK = text(re.compile(r"|https?://\S+"), "an address such as https://…")._replace(is_secret=True)
_HOSTS = texts(
    re.compile(r"[a-z0-9.-]+(:\d{1,5})?|\[::1\](:\d{1,5})?"),
    "a list of hosts in small letters, with their port where the address has one, such as ['hc-ping.com']",
    empty=True,
)
_SECRET = Rule("whsec_ and the base64 of 24 to 64 bytes", _is_secret)


def find_refusal(url: str, hosts: Collection[str]) -> str:
    """Return why nothing may be sent to this address, '' if it may. Names the host, never the rest of the address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "This is not an address."
    if not (host and url.isascii() and url.isprintable() and " " not in url and len(url) <= LONGEST):
        return f"This is not an address such as https://example.com/path, of at most {LONGEST} plain characters."
    if "@" in parts.netloc or parts.fragment:
        return "An address has no user name, password or fragment here."
    listed = parts.netloc.lower()
    if listed not in hosts:
        known = ", ".join(hosts) or "nothing"
        return (
            f"DELAYQ['ALERTS']['HOSTS'] does not list {listed!r}.{suggest_name(listed, hosts)} It lists {known}. "
            "A host is written with its port where the address has one."
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOCAL):
        where = host if port is None else f"{host}:{port}"
        return f"The address of {where} must begin with https://; only that of this machine may begin with http://."
    return ""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    #: True sends to ADMINS.
    mail: bool | tuple[str, ...] = setting(False, _MAIL)
    webhook: str = setting("", _WEBHOOK, repr=False)
    hosts: tuple[str, ...] = setting((), _HOSTS)
    secret: str = setting("", _SECRET, repr=False)
    #: Consecutive failures after which a schedule is reported.
    failures: int = setting(3, number(1, 1000, whole=True))
    every: float = setting(15, number(1, 3600))

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(name for name, on in (("mail", self.mail), ("webhook", self.webhook)) if on)


def parse(raw: Any, name: str = "DELAYQ['ALERTS']") -> AlertSettings | None:
    """Return the validated setting, or raise ImproperlyConfigured with what to write instead."""
    if raw is None:
        return None
    made = AlertSettings(**read_settings(AlertSettings, raw, name))
    if made.webhook and (refusal := find_refusal(made.webhook, made.hosts)):
        raise ImproperlyConfigured(f"{name}['WEBHOOK']: {refusal}")
    if made.webhook and not made.secret:
        raise ImproperlyConfigured(f"{name}['SECRET'] is missing: it signs the messages to WEBHOOK.")
    return made
