"""The values of a schedule that code can declare: complete, as JSON, compared, as text. Reads no database."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ..calls import registry
from ..calls.decorators import Declared
from ..text import redact_arguments
from . import Schedule
from .columns import Values, get_fields
from .kept import SWITCH_FIELDS

FIELDS = get_fields(Schedule)


class Unit(NamedTuple):
    """Fields that only make sense together."""

    name: str
    fields: tuple[str, ...]

    def is_same(self, one: Values, other: Values) -> bool:
        """Return whether both are equal. The reason of a pause is ignored while both are enabled."""
        if self is SWITCH and one["enabled"] and other["enabled"]:
            return True
        return all(one[name] == other[name] for name in self.fields)


RECURRENCE = Unit("recurrence", ("kind", "cron", "every", "at"))
SWITCH = Unit("enabled", SWITCH_FIELDS)
_TOGETHER = {name: unit for unit in (RECURRENCE, SWITCH) for name in unit.fields}
UNITS = tuple(dict.fromkeys(_TOGETHER.get(name) or Unit(name, (name,)) for name in FIELDS))


def list_differing(one: Values, other: Values) -> list[Unit]:
    return [unit for unit in UNITS if not unit.is_same(one, other)]


def select_values(units: Iterable[Unit], wanted: Values) -> dict[str, Any]:
    return {name: wanted[name] for unit in units for name in unit.fields}


def build_declared(declared: Declared) -> Schedule:
    """Return an unsaved schedule as declared in the code, with every default; a `ValidationError` for wrong values."""
    schedule = Schedule(**declared.values)
    schedule.clean_fields()
    return schedule


def format_unit(unit: Unit, values: Values) -> str:
    """Return these fields as text for display, with secrets hidden."""
    if unit is RECURRENCE:
        if values["kind"] == "cron":
            return f"cron {values['cron']!r}"
        return ("every " if values["kind"] == "every" else "") + _format_value(values["every"] or values["at"])
    if unit is SWITCH:
        reason = values["pause_reason"]
        return "on" if values["enabled"] else f"off ({reason})" if reason else "off"
    if unit.name in ("args", "kwargs"):
        args, kwargs = redact_arguments(values["args"], values["kwargs"], registry.find_parameters(values["task"]))
        return repr(args if unit.name == "args" else kwargs)
    return _format_value(values[unit.name])


def _format_value(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S %Z}"
    return "nothing" if value is None else str(value) if isinstance(value, timedelta) else repr(value)
