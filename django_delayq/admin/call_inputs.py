"""Inputs for a task's arguments, made from its signature and annotations, or JSON. Saves nothing.

Note [Inputs or JSON]
Arguments are stored as JSON, which can express more than inputs: extra positional arguments, or null in place of a
default. A form has inputs only if the task has one for each argument and they express exactly what is stored.
Otherwise it has JSON. Users can tick "As JSON". A submitted form is read as JSON if it contains JSON.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from ..calls.annotations import choices_of, find_misfit, hints_of, options_of, same, wanted
from ..calls.compat import AnyTask
from ..text import HIDDEN, looks_secret
from .display import pretty_json
from .formfields import ArgumentsField, parse_json

#: Name of the checkbox "As JSON".
AS_JSON = "call_as_json"
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SHAPES = {int: "number", float: "number", str: "text", datetime: "text", date: "date"}


@dataclass(frozen=True)
class Call:
    args: list[Any]
    kwargs: dict[str, Any]

    def same(self, other: "Call | None") -> bool:
        """Compare as JSON, because in Python 1 equals True and 1.0."""
        return other is not None and self.written() == other.written()

    def written(self) -> str:
        return json.dumps([self.args, self.kwargs], sort_keys=True)


class ValueField(forms.Field):
    """The input of one argument. An empty input is `Parameter.empty`: the argument is omitted."""

    def __init__(self, parameter: Parameter, hint: Any) -> None:
        super().__init__(required=False, label=parameter.name)
        kinds = [each for each in options_of(hint) if each is not NoneType]
        self.name, self.hint, self.kind = parameter.name, hint, kinds[0] if len(kinds) == 1 else Any
        self.choices = [(_("yes"), True), (_("no"), False)] if self.kind is bool else choices_of(self.kind)
        self.shape = "choices" if self.choices else _SHAPES.get(self.kind, "json")
        self.is_needed = parameter.default is Parameter.empty
        default = "" if self.is_needed else self._default(parameter.default)
        says_default = default and _("default: %(value)s") % {"value": default}
        if not self.choices:
            words = wanted(self.kind if len(kinds) == 1 else hint)
            if self.shape == "json":
                words = _("%(wanted)s, as JSON") % {"wanted": words} if words else "JSON"
            self.help_text = "; ".join(filter(None, (words, says_default)))
        self.widget = self._widget(default, says_default or "---------")

    def to_python(self, value: Any) -> Any:
        if not value:
            return Parameter.empty
        found = self._read(value)
        if problem := find_misfit(self.name, self.hint, found):
            raise ValidationError(problem, code="invalid")
        return found

    def text_of(self, value: Any) -> str | None:
        """Return the input's text for a value; None if no text would be read as the same value."""
        if self.shape == "choices":
            return next((json.dumps(each) for _name, each in self.choices if same(each, value)), None)
        if self.shape in ("json", "number"):
            return pretty_json(value)
        if not isinstance(value, str) or not value.isprintable():  # a single-line input does not preserve it
            return None
        return value if self.shape == "text" or len(value) == len("2026-01-31") else None

    def _read(self, text: str) -> Any:
        if self.shape == "json":
            try:
                return parse_json(text)
            except ValidationError as error:
                raise ValidationError(f"{self.name}: {error.message}", code="invalid") from None
        with suppress(ValueError):
            if self.shape == "choices":
                return json.loads(text)
            if self.kind is int:
                return int(text)
            if self.kind is float:
                return int(text) if text.strip("+- ").isdecimal() else _finite(text)
        return text  # if this type is not wanted, the error quotes it as typed

    def _default(self, value: Any) -> str:
        if looks_secret(self.name) and value is not None:
            return HIDDEN
        plain = getattr(value, "value", value)
        named = next((name for name, each in self.choices if same(each, plain)), None)
        return named or (plain if isinstance(plain, str) and plain else _("none") if plain is None else repr(plain))

    def _widget(self, default: str, empty: str) -> forms.Widget:
        needed = {"aria-required": "true"} if self.is_needed else {}
        if self.shape == "choices":
            choices = [("", empty), *((json.dumps(value), name) for name, value in self.choices)]
            return forms.Select(attrs=needed, choices=choices)
        attrs = {"autocomplete": "off", "spellcheck": "false", "placeholder": default, **needed}
        if self.shape == "json":
            return forms.Textarea(attrs={**attrs, "rows": 2, "cols": 60, "class": "delayq-json"})
        if self.shape == "date":
            return forms.DateInput(attrs={**attrs, "type": "date"})
        return forms.TextInput(attrs={**attrs, **({"class": "vTextField"} if self.shape == "text" else {})})


class CallInputs(forms.Form):
    """An input for each parameter; see Note [Inputs or JSON]. `positional`: the number of positional arguments."""

    def __init__(self, task: AnyTask, positional: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, prefix="call")
        self.parameters = list(registry.signature(task).parameters.values())
        self.positional = positional
        hints = hints_of(task.func)
        for each in self.parameters:
            self.fields[each.name] = ValueField(each, hints.get(each.name, Any))

    @staticmethod
    def fit(task: AnyTask | None) -> bool:
        """Return whether the task has an input for each argument."""
        return task is not None and all(
            each.kind not in _VARIABLE for each in registry.signature(task).parameters.values()
        )

    @classmethod
    def showing(cls, task: AnyTask, call: Call) -> Self | None:
        """Return inputs that express exactly this call, or None."""
        empty = cls(task, len(call.args))
        positional = [each.name for each in empty.parameters if each.kind <= Parameter.POSITIONAL_OR_KEYWORD]
        values = dict(zip(positional, call.args, strict=False)) | call.kwargs
        if not values.keys() <= empty.fields.keys():
            return None
        texts = {name: cast(ValueField, empty.fields[name]).text_of(value) for name, value in values.items()}
        found = cls(task, len(call.args), {empty.add_prefix(name): text for name, text in texts.items()})
        return found if None not in texts.values() and call.same(found.call()) else None

    def call(self) -> Call | None:
        """Return the typed arguments, or None if an input is invalid."""
        if not self.is_valid():
            return None
        call = Call([], {})
        for index, each in enumerate(self.parameters):
            value = self.cleaned_data.get(each.name, Parameter.empty)
            if value is Parameter.empty:
                continue
            by_place = each.kind is Parameter.POSITIONAL_ONLY or index < self.positional
            if by_place and index == len(call.args):
                call.args.append(value)
            else:
                call.kwargs[each.name] = value
        return call

    def problems(self) -> list[str]:
        """Return the errors of the inputs, including missing arguments."""
        for name, field in self.fields.items():
            if cast(ValueField, field).is_needed and self.cleaned_data.get(name) is Parameter.empty:
                self.add_error(name, _("%(name)s: this argument is needed") % {"name": name})
        return [str(text) for name in self.fields for text in self.errors.get(name, ())]


class CallJSON(forms.Form):
    """The arguments of any task, as JSON."""

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
    def showing(cls, call: Call) -> Self:
        return cls({name: pretty_json(value) for name, value in vars(call).items()})

    def call(self) -> Call | None:
        """Return the typed arguments, or None if they are invalid."""
        return Call(**self.cleaned_data) if self.is_valid() else None

    def problems(self) -> list[str]:
        """Return the errors of the JSON, or a message if there is none."""
        if self.fields.keys().isdisjoint(self.data):
            return [_("The arguments of this task are written as JSON. Write them below.")]
        return [f"{self.fields[name].label}: {text}" for name, texts in self.errors.items() for text in texts]


class CallWidget(forms.Widget):
    """Shows inputs or JSON; see Note [Inputs or JSON]. `sent` is the submitted form."""

    shown: CallInputs | CallJSON
    sent: CallInputs | CallJSON
    path = ""
    can_switch = False
    #: Errors other than those of `sent`.
    problems: Sequence[str] = ()

    def settle(self, path: str, stored: Call, data: Mapping[str, Any] | None) -> None:
        """Choose what to show: the stored arguments, or the submitted ones."""
        self.path, task = path, registry.find_task(path)
        fits = CallInputs.fit(task) and isinstance(stored.args, list) and isinstance(stored.kwargs, dict)
        self.can_switch = fits and bool(registry.signature(cast(AnyTask, task)).parameters)
        call: Call | None = stored
        if data is not None:
            written = not fits or "args" in data or "kwargs" in data
            self.sent = CallJSON(data) if written else CallInputs(cast(AnyTask, task), len(stored.args), data)
            call = self.sent.call()
        if call is None:
            self.shown = self.sent
        elif data is not None and self.can_switch and AS_JSON in data:
            self.shown = CallJSON.showing(call)
            if isinstance(self.sent, CallInputs):  # an argument may still be missing
                self.problems = [_("Nothing is saved yet: look at the JSON, then save again.")]
        else:
            inputs = CallInputs.showing(cast(AnyTask, task), call) if fits else None
            self.shown = inputs or CallJSON.showing(call)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Call | None:
        return self.sent.call()

    def id_for_label(self, id_: Any) -> str:
        return ""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        context = {
            "shown": self.shown, "task": self.path, "can_switch": self.can_switch,
            "as_json": AS_JSON, "is_json": isinstance(self.shown, CallJSON),
        }  # fmt: skip
        return render_to_string("admin/django_delayq/schedule/call.html", context)


class CallField(forms.Field):
    """A task's arguments, as a `Call`."""

    widget = CallWidget

    def clean(self, value: Any) -> Call:
        widget = cast(CallWidget, self.widget)
        problems = widget.problems or widget.sent.problems()
        if not widget.problems and widget.sent.errors:
            widget.shown = widget.sent
        if problems:
            raise ValidationError([*problems])
        return cast(Call, value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return not cast(Call, initial).same(data)


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value
