"""The values of a row that people edit: complete, compared, as JSON and back. Reads no database."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Field, JSONField, Model
from django.utils.duration import duration_string

Values = Mapping[str, Any]


#: The model whose fields are a definition. A model that inherits from it may add fields, which are none.
SCHEDULE = "django_delayq.Schedule"


def own_fields(model: type[Model]) -> "list[Field[Any, Any]]":
    """Return the fields of `Schedule` but its key, also of a model that inherits from it."""
    fields = model._meta.concrete_fields
    return [field for field in fields if field.model._meta.label == SCHEDULE and not field.primary_key]


def fields_of(model: type[Model]) -> dict[str, "Field[Any, Any]"]:
    """Return every field of `Schedule` that a person can edit, by its name."""
    return {field.name: field for field in own_fields(model) if field.editable}


def values_of(row: Model) -> dict[str, Any]:
    """Return the value of every field, instants in UTC."""
    return {name: _in_utc(getattr(row, name)) for name in fields_of(type(row))}


def to_json(values: Values) -> dict[str, Any]:
    """Return the values as JSON can carry them."""
    return {name: _as_text(value) for name, value in values.items()}


def from_json(model: type[Model], stored: Values) -> dict[str, Any]:
    """Return the value of every field; one that is not stored has its default."""
    values: dict[str, Any] = {}
    for name, field in fields_of(model).items():
        value = stored[name] if name in stored else field.get_default()
        values[name] = value if isinstance(field, JSONField) else _in_utc(field.to_python(value))
    return values


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _as_text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return duration_string(value) if isinstance(value, timedelta) else value
