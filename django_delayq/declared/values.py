"""The values of a schedule that code can declare: complete, as JSON and back, and compared. Reads no database."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Field, JSONField

from ..decorators import Declared
from ..models import Schedule

Values = Mapping[str, Any]
#: Every field that a person can edit, by its name.
FIELDS: dict[str, "Field[Any, Any]"] = {
    field.name: field for field in Schedule._meta.concrete_fields if field.editable and not field.primary_key
}


class Unit(NamedTuple):
    """Fields that only make sense together. See Note [Three sides]."""

    name: str
    fields: tuple[str, ...]

    def same(self, one: Values, other: Values) -> bool:
        """Say whether both have the same. The reason for a pause means nothing while there is none."""
        if self is SWITCH and one["enabled"] and other["enabled"]:
            return True
        return all(one[name] == other[name] for name in self.fields)

    def of(self, values: Values) -> dict[str, Any]:
        """Return the values of these fields."""
        return {name: values[name] for name in self.fields}


RECURRENCE = Unit("recurrence", ("kind", "cron", "every", "at"))
SWITCH = Unit("enabled", ("enabled", "pause_reason"))
_TOGETHER = {name: unit for unit in (RECURRENCE, SWITCH) for name in unit.fields}
UNITS = tuple(dict.fromkeys(_TOGETHER.get(name) or Unit(name, (name,)) for name in FIELDS))


def declared_schedule(declared: Declared) -> Schedule:
    """Return an unsaved schedule as the code declares it, with every default filled in.

    Raises:
        ValidationError: A value is none of its field, such as a choice that does not exist.
    """
    schedule = Schedule(**declared.values)
    schedule.clean_fields()
    return schedule


def values_of(schedule: Schedule) -> dict[str, Any]:
    """Return the value of every field, instants in UTC."""
    values = {name: getattr(schedule, name) for name in FIELDS}
    return {name: _in_utc(value) for name, value in values.items()}


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def to_json(values: Values) -> dict[str, Any]:
    """Return the values as JSON can carry them."""
    blank = Schedule()
    found = {}
    for name, value in values.items():
        if isinstance(value, datetime | timedelta):
            setattr(blank, name, value)
            value = FIELDS[name].value_to_string(blank)
        found[name] = value
    return found


def from_json(stored: Values) -> dict[str, Any]:
    """Return the value of every field; one that a former release did not know had its default."""
    values: dict[str, Any] = {}
    for name, field in FIELDS.items():
        if name not in stored:
            values[name] = field.get_default()
        else:
            values[name] = stored[name] if isinstance(field, JSONField) else _in_utc(field.to_python(stored[name]))
    return values
