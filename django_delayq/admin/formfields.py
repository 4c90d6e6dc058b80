"""Form fields for schedules: convert text to values and back. The model validates the schedule."""

import json
import re
from collections.abc import Container
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf
from ..calls import handover, registry
from ..calls.validators import validate_json
from ..exceptions import InvalidArguments, InvalidRecurrence
from ..models import read_tags
from ..recurrence.zone import instant_of
from .display import pretty_json
from .durations import format_duration, parse_duration

Choices = list[tuple[str, Any]]


class DurationField(forms.Field):
    widget = forms.TextInput(attrs={"class": "delayq-duration", "size": 12, "autocomplete": "off"})

    def prepare_value(self, value: Any) -> Any:
        return format_duration(value) if isinstance(value, timedelta) else value

    def to_python(self, value: Any) -> timedelta | None:
        try:
            return parse_duration(value) if value and value.strip() else None
        except ValueError as error:
            raise ValidationError(str(error), code="invalid") from None


class WholeNumberField(forms.IntegerField):
    """Accepts only digits. Django reads `1.000` as 1, but it is a thousand in German."""

    re_decimal = re.compile(r"(?!)")
    default_error_messages = {
        "invalid": gettext_lazy("Enter a whole number of digits only, such as 1000, without a point or comma.")
    }


class TagsField(forms.CharField):
    """Tags separated by commas; a list in Python."""

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else ", ".join(value or ())

    def clean(self, value: Any) -> list[str]:
        return read_tags(super().clean(value))

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.prepare_value(initial) != (data or "").strip())


class ArgumentsField(forms.Field):
    """A JSON list or object; an empty text is an empty container."""

    widget = forms.Textarea(attrs={"class": "delayq-json", "rows": 3, "cols": 60, "spellcheck": "false"})

    def __init__(self, *, container: type[list[Any]] | type[dict[str, Any]], **kwargs: Any) -> None:
        super().__init__(required=False, initial=container, **kwargs)
        self.container = container

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else pretty_json(value)

    def to_python(self, value: Any) -> Any:
        text = (value or "").strip()
        found = parse_json(text) if text else self.container()
        try:
            validate_json(found, {}) if self.container is list else validate_json([], found)
        except InvalidArguments as error:
            raise ValidationError(str(error), code="invalid") from None
        return found


def parse_json(text: str) -> Any:
    """Parse JSON. A ValidationError has the position of a syntax error, or the reason why the value is refused."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        values = {"problem": error.msg, "line": error.lineno, "column": error.colno}
        message = _("This is not JSON: %(problem)s, line %(line)d, column %(column)d.") % values
        if "'" in text:
            message += " " + _("JSON has double quotes around text.")
        raise ValidationError(message, code="invalid") from None
    except (ValueError, RecursionError) as error:
        message = _("This cannot be used: %(problem)s.") % {"problem": str(error).rstrip(".")}
        raise ValidationError(message, code="invalid") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(_("%(name)s is not JSON; use null or a text") % {"name": name})


class InstantField(forms.SplitDateTimeField):
    """An aware instant, read and shown in `zone`, by default the current one, also if USE_TZ is off."""

    zone: tzinfo | None = None

    def prepare_value(self, value: Any) -> Any:
        """Return local time without a zone, so that the widget converts nothing."""
        if isinstance(value, datetime) and timezone.is_aware(value):
            return timezone.localtime(value, self.zone).replace(tzinfo=None)
        return value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(self.prepare_value(initial), data)

    def compress(self, data_list: Any) -> datetime | None:
        """Return an aware datetime or None. A local time that occurs twice is the first one."""
        with timezone.override(UTC):  # Django would read it in the current zone; in UTC every time exists
            found = super().compress(data_list)
        if found is None:
            return None
        try:
            return instant_of(found.replace(tzinfo=None), self.zone or timezone.get_current_timezone())
        except InvalidRecurrence as error:
            raise ValidationError(str(error), code="invalid") from None


@cache
def zones() -> list[str]:
    """Return the zones to offer. Cached, because listing them reads every file of the system's time zones."""
    return sorted({"UTC", *(zone for zone in available_timezones() if "/" in zone)})


def task_choices(former: str) -> Choices:
    """Return every installed task's path and summary. Here and below, a missing `former` value is offered too."""
    tasks = registry.get_tasks()
    known = [(path, Truncator(registry.summary(task)).chars(100)) for path, task in tasks.items()]
    new = registry.current_name(former)
    gone = _("not installed") if new == former else _("alias of %(task)s") % {"task": new}
    return [*known, *_gone(former, tasks, gone)]


def queue_choices(former: str) -> Choices:
    queues = conf.get_config().queues
    gone = _("%(queue)s (no setting names it)") % {"queue": former}
    return [*((queue, queue) for queue in queues), *_gone(former, queues, gone)]


def backend_choices(former: str) -> Choices:
    backends = handover.backends()
    gone = _("%(backend)s (not in TASKS)") % {"backend": former}
    others = [(alias, f"{alias} ({name})") for alias, name in backends.items()]
    return [("", _("this app's own workers")), *others, *_gone(former, backends, gone)]


def _gone(former: str, known: Container[str], label: str) -> Choices:
    return [(former, label)] if former and former not in known else []
