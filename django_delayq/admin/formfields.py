"""Form fields for what schedules are made of: durations, JSON arguments, instants, zones, tasks, queues and backends.

Turns text into values and back; whether the values make a schedule is for the model to say.
"""

import json
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from .. import conf, handover, registry
from ..compat import AnyTask
from ..exceptions import InvalidArguments, InvalidRecurrence
from ..timing.zone import instant_of
from ..validators import MAX_ARGUMENT_BYTES, validate_json
from .display import pretty_json
from .durations import format_duration, parse_duration

Choices = list[tuple[str, Any]]
#: What is not even read. Far above what may be stored, because it is shown indented, a line for each value.
MAX_TYPED_BYTES = 32 * MAX_ARGUMENT_BYTES


class DurationField(forms.Field):
    """A duration written as `1h 30m`; see `durations.parse_duration` for what is accepted."""

    widget = forms.TextInput(attrs={"class": "delayq-duration", "size": 12, "autocomplete": "off"})

    def prepare_value(self, value: Any) -> Any:
        """Show a duration as people write it, and what was typed as it was typed."""
        return format_duration(value) if isinstance(value, timedelta) else value

    def to_python(self, value: Any) -> timedelta | None:
        """Return the duration, None for an empty text."""
        if value is None or isinstance(value, timedelta):
            return value
        if not str(value).strip():
            return None
        try:
            return parse_duration(str(value))
        except ValueError as error:
            raise ValidationError(str(error), code="invalid") from None


class ArgumentsField(forms.Field):
    """A JSON list or object; an empty text is an empty one."""

    widget = forms.Textarea(attrs={"class": "delayq-json", "rows": 3, "cols": 60, "spellcheck": "false"})

    def __init__(self, *, container: type[list[Any]] | type[dict[str, Any]], **kwargs: Any) -> None:
        super().__init__(required=False, initial=container, **kwargs)
        self.container = container

    def prepare_value(self, value: Any) -> Any:
        """Show JSON indented where it is long, and what was typed as it was typed."""
        return value if isinstance(value, str) else pretty_json(value)

    def to_python(self, value: Any) -> Any:
        """Return the list or dict; says where the text is no JSON."""
        if isinstance(value, self.container):
            return value
        text = str(value or "").strip()
        if len(text.encode()) > MAX_TYPED_BYTES:
            message = _("This is more than 64 KiB. Store large values elsewhere and pass a key.")
            raise ValidationError(message, code="too_long")
        found = self._parse(text) if text else self.container()
        try:
            validate_json(found, {}) if self.container is list else validate_json([], found)
        except InvalidArguments as error:
            raise ValidationError(str(error), code="invalid") from None
        return found

    def _parse(self, text: str) -> Any:
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            values = {"problem": error.msg, "line": error.lineno, "column": error.colno}
            message = _("This is not JSON: %(problem)s, line %(line)d, column %(column)d.") % values
            if "'" in text:
                message += " " + _("JSON has double quotes around text.")
            raise ValidationError(message, code="invalid") from None
        except (ValueError, RecursionError) as error:
            problem = str(error) if isinstance(error, ValueError) else _("it is nested too deeply")
            message = _("This cannot be used: %(problem)s.") % {"problem": problem.rstrip(".")}
            raise ValidationError(message, code="invalid") from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare values, not the way they are written."""
        try:
            found = self.to_python(data)
        except ValidationError:
            return True
        return json.dumps(found, sort_keys=True) != json.dumps(initial or self.container(), sort_keys=True)


def _refuse_constant(name: str) -> None:
    raise ValueError(_("%(name)s is not JSON; use null or a text") % {"name": name})


class InstantField(forms.SplitDateTimeField):
    """An aware instant, typed and shown in `zone`, by default the current one, also where USE_TZ is off."""

    zone: tzinfo | None = None

    def prepare_value(self, value: Any) -> Any:
        """Show local time, without a zone, so that the widget converts nothing."""
        if isinstance(value, datetime) and timezone.is_aware(value):
            return timezone.localtime(value, self.zone).replace(tzinfo=None)
        return value

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare what is stored with what is typed, as both read in this zone."""
        return super().has_changed(self.prepare_value(initial), data)

    def compress(self, data_list: Any) -> datetime | None:
        """Return an aware datetime or None. A time that comes twice is the first of the two."""
        with timezone.override(UTC):  # Django would read it in the current zone; in UTC every time exists
            found = super().compress(data_list)
        if found is None:
            return None
        try:
            return instant_of(found.replace(tzinfo=None), self.zone or timezone.get_current_timezone())
        except InvalidRecurrence as error:
            raise ValidationError(str(error), code="invalid") from None


class ZoneInput(forms.TextInput):
    """A text input that offers the zones this machine knows; the model checks what is typed."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """Return the input and its list of suggestions."""
        attrs = {**(attrs or {}), "list": f"{name}-zones", "size": 32, "autocomplete": "off", "spellcheck": "false"}
        field = super().render(name, value, attrs, renderer)
        options = format_html_join("", '<option value="{}">', _zones())
        return format_html('{}<datalist id="{}">{}</datalist>', field, f"{name}-zones", options)


@cache
def _zones() -> list[tuple[str]]:
    """Return the zones to offer; read once, since asking for them reads every file of the machine's time zones."""
    return [(zone,) for zone in sorted(available_timezones()) if "/" in zone or zone == "UTC"]


def task_choices() -> Choices:
    """Return every installed task, grouped by module, with its parameters and what its docstring says."""
    groups: dict[str, Choices] = {}
    for path, task in registry.get_tasks().items():
        module = path.rpartition(".")[0]
        groups.setdefault(module, []).append((path, _task_label(path, task)))
    return [("", "---------"), *groups.items()]


def _task_label(path: str, task: AnyTask) -> str:
    parameters = [
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        for parameter in registry.shown_signature(task).parameters.values()
    ]
    label = f"{path.rpartition('.')[2]}({', '.join(parameters)})"
    summary = registry.summary(task)
    return Truncator(f"{label} – {summary}" if summary else label).chars(110)


def with_vanished_task(choices: Choices, path: str) -> Choices:
    """Add a task that the code no longer has, so that its schedule can still be opened."""
    if not path or path in registry.get_tasks():
        return choices
    return [*choices, (path, _("%(task)s (not installed)") % {"task": path})]


def queue_choices() -> Choices:
    """Return the queues that the settings name."""
    return [(queue, queue) for queue in conf.get_config().queues]


def with_unknown_queue(choices: Choices, queue: str) -> Choices:
    """Add a queue that the settings no longer name."""
    if not queue or queue in conf.get_config().queues:
        return choices
    return [*choices, (queue, _("%(queue)s (no setting names it)") % {"queue": queue})]


def backend_choices() -> Choices:
    """Return the aliases of TASKS, and our own workers first."""
    others = [(alias, f"{alias} ({name})") for alias, name in handover.backends().items()]
    return [("", _("this app's own workers")), *others]


def with_unknown_backend(choices: Choices, backend: str) -> Choices:
    """Add a backend that TASKS no longer has."""
    if not backend or backend in handover.backends():
        return choices
    return [*choices, (backend, _("%(backend)s (not in TASKS)") % {"backend": backend})]
