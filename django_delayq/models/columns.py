"""A datetime column that is aware in Python, whatever USE_TZ says, and the fields of a definition."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.apps import apps
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, JSONField, Model
from django.db.models.expressions import Expression
from django.utils import timezone
from django.utils.duration import duration_string

from ..conf import is_tz_on


class UTCDateTimeField(models.DateTimeField):  # type: ignore[type-arg]
    """An instant, aware in Python and stored in UTC, also if USE_TZ is off: local time is ambiguous an hour a year."""

    def get_prep_value(self, value: Any) -> Any:
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value
        value = self.to_python(value)
        if isinstance(value, datetime) and timezone.is_naive(value):
            value = timezone.make_aware(value, timezone.get_default_timezone())
        return value

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        if not prepared:
            value = self.get_prep_value(value)
        if isinstance(value, datetime) and not is_tz_on():
            value = value.astimezone(UTC)
            if not connection.features.supports_timezones:
                value = value.replace(tzinfo=None)
        return connection.ops.adapt_datetimefield_value(value)

    def get_db_converters(self, connection: BaseDatabaseWrapper) -> list[Any]:
        return [] if is_tz_on() else [self._make_aware]

    def _make_aware(self, value: Any, expression: Expression, connection: BaseDatabaseWrapper) -> Any:
        if isinstance(value, datetime) and timezone.is_naive(value):
            if connection.features.supports_timezones:
                # The driver removed the zone but left the fold, which distinguishes the passes of a repeated hour.
                zone = connection.timezone or timezone.get_default_timezone()
                return value.replace(tzinfo=zone).astimezone(UTC)
            return value.replace(tzinfo=UTC)
        return value


Values = Mapping[str, Any]
#: The model whose fields form a definition. Fields that a subclass adds do not belong to it.
SCHEDULE = "django_delayq.Schedule"


def list_own_fields(model: type[Model]) -> "list[Field[Any, Any]]":
    """Return the fields of `Schedule` without its key, also for a subclass."""
    fields = model._meta.concrete_fields
    return [field for field in fields if field.model._meta.label == SCHEDULE and not field.primary_key]


def get_fields(model: type[Model]) -> dict[str, "Field[Any, Any]"]:
    """Return every field of `Schedule` that a user can edit, by name."""
    return {field.name: field for field in list_own_fields(model) if field.editable}


def get_values(row: Model) -> dict[str, Any]:
    """Return the value of every editable field, instants in UTC."""
    return {name: _to_utc(getattr(row, name)) for name in get_fields(type(row))}


def to_json(values: Values) -> dict[str, Any]:
    return {name: _to_text(value) for name, value in values.items()}


def from_json(stored: Values) -> dict[str, Any]:
    """Return the value of every editable field; a field that is not stored gets its default."""
    values: dict[str, Any] = {}
    for name, field in get_fields(apps.get_model(SCHEDULE)).items():
        value = stored[name] if name in stored else field.get_default()
        values[name] = value if isinstance(field, JSONField) else _to_utc(field.to_python(value))
    return values


def _to_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _to_text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return duration_string(value) if isinstance(value, timedelta) else value
