"""The values of a schedule as text for people, secrets hidden. Reads no database."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from .. import registry
from ..redaction import redact_arguments
from .values import RECURRENCE, SWITCH, Unit, Values


def shown(unit: Unit, values: Values, duration: Callable[[timedelta], str] = str) -> str:
    """Return what these fields say."""
    if unit is RECURRENCE:
        if values["kind"] == "cron":
            return f"cron {values['cron']!r}"
        return ("every " if values["kind"] == "every" else "") + _text(values["every"] or values["at"], duration)
    if unit is SWITCH:
        reason = values["pause_reason"]
        return "on" if values["enabled"] else f"off ({reason})" if reason else "off"
    if unit.name in ("args", "kwargs"):
        args, kwargs = redact_arguments(values["args"], values["kwargs"], registry.parameters_of(values["task"]))
        return repr(args if unit.name == "args" else kwargs)
    return _text(values[unit.name], duration)


def _text(value: Any, duration: Callable[[timedelta], str]) -> str:
    if isinstance(value, timedelta):
        return duration(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S %Z}"
    return "nothing" if value is None else repr(value)
