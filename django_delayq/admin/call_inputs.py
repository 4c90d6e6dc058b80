"""Inputs for a task's arguments, made from its signature and annotations, or JSON. Saves nothing.

Note [Inputs only if exact]
Arguments are stored as JSON, which can express more than inputs, such as null in place of a default. A form has inputs
only if they express exactly what is stored, otherwise JSON. A submitted form that contains JSON is read as JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from inspect import Parameter
from math import isfinite
from types import NoneType
from typing import Any, Self, cast

from django import forms
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..calls import registry
from ..calls.annotations import describe_wanted, find_misfit, get_hints, is_same, list_choices, list_options
from ..calls.compat import AnyTask
from ..calls.validators import validate_json
from ..exceptions import InvalidArguments
from ..text import HIDDEN, is_secret_name
from .display import format_json

AS_JSON = "call_as_json"
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parse_json(text: str) -> Any:
    """Parse JSON. A ValidationError has the position of a syntax error, or the reason why the value is refused."""
    try:
        return json.loads(text, parse_float=_parse_finite, parse_constant=_parse_finite)
    except json.JSONDecodeError as error:
        values = {"problem": error.msg, "line": error.lineno, "column": error.colno}
        message = _("This is not JSON: %(problem)s, line %(line)d, column %(column)d.") % values
        if "'" in text:
            message += " " + _("JSON has double quotes around text.")
        raise ValidationError(message, code="invalid") from None
    except (ValueError, RecursionError) as error:
        problem = _("it is nested too deeply") if isinstance(error, RecursionError) else str(error).rstrip(".")
        message = _("This cannot be used: %(problem)s.") % {"problem": problem}
        raise ValidationError(message, code="invalid") from None


def _parse_finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(_("%(text)s is not a finite number") % {"text": text[:50]})
    return number


@dataclass(frozen=True)
class TypedCall:
    args: list[Any]
    kwargs: dict[str, Any]

    def is_same(self, other: "TypedCall | None") -> bool:
        """Compare as JSON, because in Python 1 equals True and 1.0."""
        written, others = (json.dumps(each and [each.args, each.kwargs], sort_keys=True) for each in (self, other))
        return written == others


class ValueField(forms.Field):
    """The input of one argument. An empty input is `Parameter.empty`: the argument is omitted."""

    def __init__(self, parameter: Parameter, hint: Any) -> None:
        super().__init__(required=False, label=parameter.name)
        kinds = [each for each in list_options(hint) if each is not NoneType]
        self.hint, self.kind = hint, kinds[0] if len(kinds) == 1 else Any
        self.choices = [(_("yes"), True), (_("no"), False)] if self.kind is bool else list_choices(self.kind)
        self.is_text, self.is_number = self.kind in (str, date, datetime), self.kind in (int, float)
        self.is_needed = parameter.default is Parameter.empty
        default = "" if self.is_needed else self._format_default(parameter.default)
        says_default = default and _("default: %(value)s") % {"value": default}
        if not self.choices:
            words = describe_wanted(self.kind if len(kinds) == 1 else hint)
            if not self.is_text and not self.is_number:
                words = _("%(wanted)s, as JSON") % {"wanted": words} if words else "JSON"
            self.help_text = "; ".join(filter(None, (words, says_default)))
        self.widget = self._build_widget(default, says_default or "---------")

    def to_python(self, value: Any) -> Any:
        if not value:
            return Parameter.empty
        found = value
        if not self.is_text:
            try:
                found = parse_json(value)
            except ValidationError as error:
                if not self.choices and not self.is_number:  # for those, the error below quotes the input
                    raise ValidationError(f"{self.label}: {error.message}", code="invalid") from None
        if problem := find_misfit(str(self.label), self.hint, found):
            raise ValidationError(problem, code="invalid")
        return found

    def format_value(self, value: Any) -> str | None:
        """Return the input's text for a value; None if no text would be read as the same value."""
        if self.choices:
            return next((json.dumps(each) for _name, each in self.choices if is_same(each, value)), None)
        if not self.is_text:
            return format_json(value)
        if not isinstance(value, str) or not value.isprintable():  # a single-line input does not preserve it
            return None
        return value if self.kind is not date or len(value) == len("2026-01-31") else None

    def _format_default(self, value: Any) -> str:
        if is_secret_name(str(self.label)) and value is not None:
            return HIDDEN
        plain = getattr(value, "value", value)
        named = next((name for name, each in self.choices if is_same(each, plain)), None)
        return named or (plain if isinstance(plain, str) and plain else _("none") if plain is None else repr(plain))

    def _build_widget(self, default: str, empty: str) -> forms.Widget:
        needed = {"aria-required": "true"} if self.is_needed else {}
        if self.choices:
            choices = [("", empty), *((json.dumps(value), name) for name, value in self.choices)]
            return forms.Select(attrs=needed, choices=choices)
        attrs = {"autocomplete": "off", "spellcheck": "false", "placeholder": default, **needed}
        if self.kind is date:
            return forms.DateInput(attrs={**attrs, "type": "date"})
        if self.is_text or self.is_number:
            return forms.TextInput(attrs={**attrs, **({"class": "vTextField"} if self.is_text else {})})
        return forms.Textarea(attrs={**attrs, "rows": 2, "cols": 60, "class": "delayq-json"})


class CallInputs(forms.Form):
    """An input for each parameter: see Note [Inputs only if exact]. `positional` is the number of positional values."""

    def __init__(self, task: AnyTask, positional: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, prefix="call")
        self.parameters = list(registry.get_signature(task).parameters.values())
        self.positional = positional
        hints = get_hints(task.func)
        for each in self.parameters:
            self.fields[each.name] = ValueField(each, hints.get(each.name, Any))

    @classmethod
    def build_for(cls, task: AnyTask, call: TypedCall) -> Self | None:
        empty = cls(task, len(call.args))
        positional = [each.name for each in empty.parameters if each.kind <= Parameter.POSITIONAL_OR_KEYWORD]
        values = dict(zip(positional, call.args, strict=False)) | call.kwargs
        fields = cast(dict[str, ValueField], empty.fields)
        known = fields.keys() & values.keys()
        texts = {empty.add_prefix(name): fields[name].format_value(values[name]) for name in known}
        found = cls(task, len(call.args), texts)
        return found if call.is_same(found.read_call()) else None

    def read_call(self) -> TypedCall | None:
        if not self.is_valid():
            return None
        call = TypedCall([], {})
        for index, each in enumerate(self.parameters):
            value = self.cleaned_data[each.name]
            if value is Parameter.empty:
                continue
            by_place = each.kind is Parameter.POSITIONAL_ONLY or index < self.positional
            if by_place and index == len(call.args):
                call.args.append(value)
            else:
                call.kwargs[each.name] = value
        return call

    def list_problems(self) -> list[str]:
        for name, field in self.fields.items():
            if cast(ValueField, field).is_needed and self.cleaned_data.get(name) is Parameter.empty:
                self.add_error(name, _("%(name)s is required") % {"name": name})
        return [str(text) for name in self.fields for text in self.errors.get(name, ())]


class ArgumentsField(forms.Field):
    """A JSON list or object; an empty text is an empty container."""

    widget = forms.Textarea(attrs={"class": "delayq-json", "rows": 3, "cols": 60, "spellcheck": "false"})

    def __init__(self, *, container: type[list[Any]] | type[dict[str, Any]], **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)
        self.container = container

    def to_python(self, value: Any) -> Any:
        text = (value or "").strip()
        found = parse_json(text) if text else self.container()
        try:
            validate_json(found, {}) if self.container is list else validate_json([], found)
        except InvalidArguments as error:
            raise ValidationError(str(error), code="invalid") from None
        return found


class CallJSON(forms.Form):
    args = ArgumentsField(
        container=list,
        label=gettext_lazy("Positional arguments"),
        help_text=gettext_lazy('A JSON list, such as [42, "text"].'),
    )
    kwargs = ArgumentsField(
        container=dict,
        label=gettext_lazy("Keyword arguments"),
        help_text=gettext_lazy('A JSON object, such as {"days": 2}.'),
    )

    @classmethod
    def build_for(cls, call: TypedCall) -> Self:
        return cls({name: format_json(value) for name, value in vars(call).items()})

    def read_call(self) -> TypedCall | None:
        return TypedCall(**self.cleaned_data) if self.is_valid() else None

    def list_problems(self) -> list[str]:
        if self.fields.keys().isdisjoint(self.data):
            return [_("Write the arguments of this task as JSON below.")]
        return [f"{self.fields[name].label}: {text}" for name, texts in self.errors.items() for text in texts]


class CallWidget(forms.Widget):
    """Shows inputs or JSON; see Note [Inputs only if exact]. `sent` is the submitted form."""

    shown: CallInputs | CallJSON
    sent: CallInputs | CallJSON
    path = ""
    can_switch = False
    #: Whether inputs were submitted with the box ticked.
    is_switched = False

    def settle(self, path: str, stored: TypedCall, data: Mapping[str, Any] | None) -> None:
        self.path, task, call = path, registry.find_task(path), cast(TypedCall | None, stored)
        parameters = [] if task is None else list(registry.get_signature(task).parameters.values())
        fits = isinstance(stored.args, list) and isinstance(stored.kwargs, dict)
        has_inputs = task is not None and fits and all(each.kind not in _VARIABLE for each in parameters)
        self.can_switch = has_inputs
        if data is not None:
            is_json = not has_inputs or "args" in data or "kwargs" in data
            self.sent = CallJSON(data) if is_json else CallInputs(cast(AnyTask, task), len(stored.args), data)
            call = self.sent.read_call()
            self.is_switched = call is not None and not is_json and AS_JSON in data
        if call is None:
            self.shown = self.sent
        else:
            as_json = not has_inputs or (data is not None and AS_JSON in data)
            inputs = None if as_json else CallInputs.build_for(cast(AnyTask, task), call)
            self.shown = inputs or CallJSON.build_for(call)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> TypedCall | None:
        return self.sent.read_call()

    def id_for_label(self, id_: Any) -> str:
        return ""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        context = {
            "shown": self.shown, "task": self.path, "can_switch": self.can_switch,
            "as_json": AS_JSON, "is_json": isinstance(self.shown, CallJSON),
        }  # fmt: skip
        return render_to_string("admin/django_delayq/schedule/call.html", context)


class CallField(forms.Field):
    widget = CallWidget

    def clean(self, value: Any) -> TypedCall:
        widget = cast(CallWidget, self.widget)
        if widget.is_switched:
            raise ValidationError(_("Nothing is saved yet: check the JSON, then save again."))
        problems = widget.sent.list_problems()
        if widget.sent.errors:
            widget.shown = widget.sent
        if problems:
            raise ValidationError([*problems])
        return cast(TypedCall, value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return not cast(TypedCall, initial).is_same(data)
