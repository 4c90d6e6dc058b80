"""What `DELAYQ["ALERTS"]` may say: who is told of what, and when not. Reads no settings."""

import base64
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import UTC, datetime, time, tzinfo
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ImproperlyConfigured

from .outgoing import find_refusal
from .redaction import HIDDEN, looks_secret
from .setting_rules import BOOLEAN, QUEUE_NAME, REST, Rule, number, read_all, text, texts

_QUIET = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)(?: (\S+))?")
_PREFIX = "whsec_"


@dataclass(frozen=True, slots=True)
class Quiet:
    """Hours of each day in which nothing is told; they may pass midnight. Without a zone they are the project's."""

    begin: time
    end: time
    zone: str = ""

    def covers(self, now: datetime, zone: str) -> bool:
        """Say whether this instant is within; `zone` is the project's."""
        local = now.astimezone(_zone(self.zone or zone)).time()
        if self.begin < self.end:
            return self.begin <= local < self.end
        return local >= self.begin or local < self.end


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)  # UTC needs no file of time zone data


def _is_secret(value: Any) -> bool:
    try:
        return value == "" or 24 <= len(secret_bytes(value)) <= 64
    except (ValueError, AttributeError, TypeError):
        return False


def secret_bytes(secret: str) -> bytes:
    """Return the key that a text such as `whsec_…` stands for.

    Raises:
        ValueError: It is no such text.
    """
    if not secret.startswith(_PREFIX):
        raise ValueError(f"A secret begins with {_PREFIX}.")
    return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)


def parse_quiet(value: str) -> Quiet:
    """Return the hours of a text such as `22:00-06:00 Europe/Berlin`.

    Raises:
        ValueError: It is none.
    """
    found = _QUIET.fullmatch(value)
    if found is None or found[1] + found[2] == found[3] + found[4]:
        raise ValueError(value)
    zone = found[5] or ""
    if zone:
        try:
            _zone(zone)
        except Exception:
            raise ValueError(zone) from None
    return Quiet(time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4])), zone)


def _is_quiet(value: Any) -> bool:
    try:
        return isinstance(value, Mapping) and all(
            (name == REST or QUEUE_NAME.fullmatch(name)) and parse_quiet(hours) for name, hours in value.items()
        )
    except (ValueError, TypeError):
        return False


_ADDRESSES = texts(re.compile(r"[^\s@]+@[^\s@]+"), "")
_HOSTS = texts(re.compile(r"[a-z0-9.-]+(:\d{1,5})?|\[::1\](:\d{1,5})?"), "")


def _value(default: Any, rule: Rule, **options: Any) -> Any:
    return field(default=default, metadata={"rule": rule}, **options)


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Validated, with defaults."""

    #: True: to ADMINS.
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
    #: A schedule that has failed so often in a row is told.
    failures: int = _value(3, number(1, 1000, whole=True))
    #: By queue, or REST.
    quiet: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"rule": Rule("a dict by queue, or '*', such as {'default': '22:00-06:00 Europe/Berlin'}", _is_quiet)},
    )
    every: float = _value(15, number(1, 3600))

    def is_quiet(self, queue: str, now: datetime, zone: str) -> bool:
        """Say whether nothing is told of this queue now; '' is what has no queue. `zone` is the project's."""
        hours = self.quiet.get(queue) or self.quiet.get(REST)
        return hours is not None and parse_quiet(hours).covers(now, zone)

    @property
    def channels(self) -> tuple[str, ...]:
        """By what is told: each message by each of them."""
        return tuple(name for name, on in (("mail", self.mail), ("webhook", self.webhook)) if on)


def parse(raw: Any) -> AlertSettings:
    """Return what the setting says.

    Raises:
        ImproperlyConfigured: An unknown key or a value that is not allowed; the message says what to write instead.
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
    if (key == "WEBHOOK" or looks_secret(key)) and not rule.holds(value):  # an address may be a secret too
        raise ImproperlyConfigured(f"DELAYQ['ALERTS'][{key!r}] must be {rule.wanted}, not {HIDDEN}.")
    rule.check(f"['ALERTS'][{key!r}]", value)
    return tuple(value) if isinstance(value, list) else value
