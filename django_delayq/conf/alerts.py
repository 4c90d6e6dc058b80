"""The setting `DELAYQ["ALERTS"]`: which problems are reported, and to whom. Reads no settings."""

import base64
import re
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from ..text import HIDDEN, did_you_mean, looks_secret
from .rules import BOOLEAN, Rule, number, read_all, text, texts

_PREFIX = "whsec_"
#: Hosts that need no TLS, because the data stays on the machine.
LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
LONGEST = 500


def _is_secret(value: Any) -> bool:
    try:
        return value == "" or 24 <= len(secret_bytes(value)) <= 64
    except (ValueError, AttributeError, TypeError):
        return False


def secret_bytes(secret: str) -> bytes:
    """Return the key encoded in a text such as `whsec_…`.

    Raises:
        ValueError: The text is not a secret.
    """
    if not secret.startswith(_PREFIX):
        raise ValueError(f"A secret begins with {_PREFIX}.")
    return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)


_ADDRESSES = texts(re.compile(r"[^\s@]+@[^\s@]+"), "")
_HOSTS = texts(re.compile(r"[a-z0-9.-]+(:\d{1,5})?|\[::1\](:\d{1,5})?"), "")


def _value(default: Any, rule: Rule, **options: Any) -> Any:
    return field(default=default, metadata={"rule": rule}, **options)


def _is_plain(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url and len(url) <= LONGEST


def find_refusal(url: str, hosts: Collection[str]) -> str:
    """Return why nothing is sent to this address, '' if it is. Names the host, never the rest of the address."""
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


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """The validated setting, with defaults."""

    #: True sends to ADMINS.
    mail: bool | tuple[str, ...] = _value(
        False,
        Rule("True (to ADMINS), False or a list of addresses", lambda v: BOOLEAN.holds(v) or _ADDRESSES.holds(v)),
    )
    webhook: str = _value("", text(re.compile(r"|https?://\S+"), "an address such as https://…"), repr=False)
    hosts: tuple[str, ...] = _value(
        (),
        Rule(
            "a list of hosts in small letters, with their port where the address has one, such as ['hc-ping.com']",
            lambda value: value in ([], ()) or _HOSTS.holds(value),
        ),
    )
    secret: str = _value("", Rule("whsec_ and the base64 of 24 to 64 bytes", _is_secret), repr=False)
    #: Consecutive failures after which a schedule is reported.
    failures: int = _value(3, number(1, 1000, whole=True))
    every: float = _value(15, number(1, 3600))

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(name for name, on in (("mail", self.mail), ("webhook", self.webhook)) if on)


def parse(raw: Any) -> AlertSettings:
    """Return the validated setting.

    Raises:
        ImproperlyConfigured: There is an unknown key or an invalid value; the message says what to write instead.
    """
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"DELAYQ['ALERTS'] must be a dict or None, not {type(raw).__name__}.")
    readers = {item.name.upper(): partial(_read, item) for item in fields(AlertSettings)}
    made = AlertSettings(**read_all(raw, "DELAYQ['ALERTS']", readers))
    if made.webhook and (refusal := find_refusal(made.webhook, made.hosts)):
        raise ImproperlyConfigured(f"DELAYQ['ALERTS']['WEBHOOK']: {refusal}")
    if made.webhook and not made.secret:
        raise ImproperlyConfigured("DELAYQ['ALERTS']['SECRET'] is missing: it signs what WEBHOOK is sent.")
    return made


def _read(item: "Field[Any]", value: Any) -> Any:
    key, rule = item.name.upper(), item.metadata["rule"]
    if (key == "WEBHOOK" or looks_secret(key)) and not rule.holds(value):  # an address may contain a secret
        raise ImproperlyConfigured(f"DELAYQ['ALERTS'][{key!r}] must be {rule.wanted}, not {HIDDEN}.")
    rule.check(f"['ALERTS'][{key!r}]", value)
    return tuple(value) if isinstance(value, list) else value
