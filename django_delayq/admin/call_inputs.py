"""Inputs for a task's arguments, made from its signature and annotations: texts to JSON and back. Saves nothing.

Note [Inputs and JSON]
What is stored is JSON, and JSON can say more than inputs can: further positional arguments, null in place of a default.
So there are inputs only where they say exactly what the JSON says, and the form has both. Beside the inputs stands what
they were made from: of inputs and JSON that one counts which was changed since, and where both were, and differ, the
form is refused. So it works with JavaScript and without; the script only hides one of the two.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from inspect import Parameter
from math import isfinite
from types import MappingProxyType, NoneType
from typing import Any, Self, cast

from django import forms
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import registry
from ..annotations import choices_of, find_misfit, hints_of, options_of, same, wanted
from ..compat import AnyTask
from ..redaction import HIDDEN, looks_secret
from .display import pretty_json
from .formfields import parse_json

#: The hidden input that says what the other ones were made from.
MADE_FROM = "call_made_from"
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SHAPES = {int: "number", float: "number", str: "text", datetime: "text", date: "date"}


@dataclass(frozen=True)
class Call:
    """What a task is called with."""

    args: list[Any]
    kwargs: dict[str, Any]

    def same(self, other: "Call | None") -> bool:
        """Say whether both are written the same: for Python 1 is True and 1.0."""
        return other is not None and self.written() == other.written()

    def written(self) -> str:
        return json.dumps([self.args, self.kwargs], sort_keys=True)


class ValueField(forms.Field):
    """The input of one argument. An empty one leaves the argument out, and is `Parameter.empty`."""

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
        """Return what the input shows for a value, None where it can show none that is read as this value again."""
        if self.shape == "choices":
            return next((json.dumps(each) for _name, each in self.choices if same(each, value)), None)
        if self.shape in ("json", "number"):
            return pretty_json(value)
        if not isinstance(value, str) or not value.isprintable():  # what no input of one line keeps
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
        return text  # if it is none that is wanted, it is quoted as it was typed

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
    """An input for each named parameter of a task; see Note [Inputs and JSON]."""

    #: Whether both inputs and JSON were changed, and say different things.
    differs = False

    def __init__(self, task: AnyTask, made_from: Call, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, prefix="call")
        self.task, self.made_from = task, made_from
        self.parameters = list(registry.signature(task).parameters.values())
        self.has_more = any(each.kind in _VARIABLE for each in self.parameters)
        hints = hints_of(task.func)
        for each in self.parameters:
            if each.kind not in _VARIABLE:
                self.fields[each.name] = ValueField(each, hints.get(each.name, Any))

    @classmethod
    def showing(cls, task: AnyTask | None, call: Call | None) -> Self | None:
        """Return inputs that say exactly what a call says, None where they cannot."""
        if task is None or call is None:
            return None
        empty = cls(task, call)
        positional = [each.name for each in empty.parameters if each.kind <= Parameter.POSITIONAL_OR_KEYWORD]
        values = dict(zip(positional, call.args, strict=False)) | call.kwargs
        if not values.keys() <= empty.fields.keys():
            return None
        texts = {name: cast(ValueField, empty.fields[name]).text_of(value) for name, value in values.items()}
        found = cls(task, call, {empty.add_prefix(name): text for name, text in texts.items()})
        return found if None not in texts.values() and call.same(found.call()) else None

    @classmethod
    def typed(cls, task: AnyTask | None, data: Mapping[str, Any]) -> Self | None:
        """Return the inputs of a form that was sent, None where it had none for this task."""
        with suppress(ValueError, TypeError, RecursionError):
            path, args, kwargs = json.loads(data.get(MADE_FROM, ""))
            if task is not None and path == task.module_path and isinstance(args, list) and isinstance(kwargs, dict):
                return cls(task, Call(args, kwargs), data)
        return None

    def call(self) -> Call | None:
        """Return what is typed, None where an input is refused. As many stay positional as were."""
        if not self.is_valid():
            return None
        call = Call([], {})
        for index, each in enumerate(self.parameters):
            value = self.cleaned_data.get(each.name, Parameter.empty)
            if value is Parameter.empty:
                continue
            by_place = each.kind is Parameter.POSITIONAL_ONLY or index < len(self.made_from.args)
            if by_place and index == len(call.args):
                call.args.append(value)
            else:
                call.kwargs[each.name] = value
        return call

    def problems(self) -> list[str]:
        """Return what is wrong with the inputs, and which argument is missing."""
        for name, field in self.fields.items():
            if cast(ValueField, field).is_needed and self.cleaned_data.get(name) is Parameter.empty:
                self.add_error(name, _("%(name)s: this argument is needed") % {"name": name})
        return [str(text) for name in self.fields for text in self.errors.get(name, ())]

    def made_from_text(self) -> str:
        return json.dumps([self.task.module_path, self.made_from.args, self.made_from.kwargs])


def settle(
    task: AnyTask | None, data: Mapping[str, Any], written: Call | None
) -> tuple[CallInputs | None, list[str], Call | None]:
    """Return the inputs to show, what is wrong with them, and what they say where they count, not the JSON.

    `written` is what the JSON says, None where it is none. See Note [Inputs and JSON].
    """
    typed = CallInputs.typed(task, data)
    if typed is None:
        return CallInputs.showing(task, written), [], None
    call = typed.call()
    if not typed.made_from.same(written) and (call is None or not call.same(written)):
        if call is not None and call.same(typed.made_from):
            return CallInputs.showing(task, written) if written else typed, [], None
        typed.differs = True
        both = _("Both these inputs and the JSON below were changed, and differ. Change one of them only.")
        return typed, [both], None
    inputs = CallInputs.showing(task, call) or typed
    return inputs, inputs.problems(), call


class CallWidget(forms.Widget):
    """Shows the inputs of a task, or says why there are none. `written` is the JSON, for the script to take over."""

    inputs: CallInputs | None = None
    task = ""
    written: Mapping[str, str] = MappingProxyType({})

    def id_for_label(self, id_: Any) -> str:
        return ""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        context = {"inputs": self.inputs, "task": self.task, "written": self.written, "made_from": MADE_FROM}
        return render_to_string("admin/django_delayq/schedule/call.html", context)


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value
