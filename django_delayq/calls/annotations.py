"""Checks JSON arguments against a task's annotations. Judges only the annotations it supports; calls nothing.

Note [Annotations are checked for new arguments only]
A task is called with its arguments as JSON returns them: a date is its ISO text, an enum member its value, and the
task converts it. Supported are bool, int, float, str, date, datetime, `Literal`, enums of plain values, list and dict
with their contents, None, and unions of these. Other annotations, and values equal to the default, are not judged.
Arguments are checked when a user or code enters them, never before an execution: a changed or wrong annotation must
not stop a schedule that ran yesterday.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from enum import Enum, Flag
from functools import lru_cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from ..text import HIDDEN, looks_secret, redact

#: Maximum characters quoted of a list or an object.
MOST_QUOTED = 100


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_iso(kind: type[date]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        with suppress(ValueError):
            return isinstance(value, str) and bool(kind.fromisoformat(value))
        return False

    return check


#: Description and predicate of each type.
_PLAIN: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: (gettext_noop("true or false"), lambda value: isinstance(value, bool)),
    int: (gettext_noop("a whole number"), lambda value: _is_number(value) and isinstance(value, int)),
    float: (gettext_noop("a number"), _is_number),
    str: (gettext_noop("a text"), lambda value: isinstance(value, str)),
    date: (gettext_noop("a date such as 2026-01-31"), _is_iso(date)),
    datetime: (gettext_noop("a date and time such as 2026-01-31T09:00:00+01:00"), _is_iso(datetime)),
    list: (gettext_noop("a list"), lambda value: isinstance(value, list | tuple)),
    dict: (gettext_noop("a JSON object"), lambda value: isinstance(value, Mapping)),
    NoneType: (gettext_noop("null"), lambda value: value is None),
}


@lru_cache(maxsize=1000)
def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function's parameters, without those that cannot be evaluated."""
    plain, found = inspect.unwrap(function), {}
    for name, annotation in inspect.signature(plain).parameters.items():
        with suppress(Exception):  # e.g. a name that is imported for type checkers only
            alone = SimpleNamespace(__annotations__={name: annotation.annotation})
            found[name] = get_type_hints(alone, getattr(plain, "__globals__", {}))[name]
    return found


def choices_of(hint: Any) -> list[tuple[str, Any]]:
    """Return (name, value) of each choice of a `Literal` or an enum of plain values; empty for other annotations."""
    if get_origin(hint) is Literal:
        return [(str(each), each.value if isinstance(each, Enum) else each) for each in get_args(hint)]
    if not isinstance(hint, type) or not issubclass(hint, Enum) or issubclass(hint, Flag):
        return []
    found = [(str(getattr(member, "label", member.name)), member.value) for member in hint]
    return found if all(isinstance(value, str | int | float | None) for _name, value in found) else []


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def wanted(hint: Any) -> str:
    """Return a description of the values that an annotation allows, '' if it is not judged."""
    said = []
    for each in options_of(hint):
        if choices := choices_of(each):
            said.append(_("one of %(choices)s") % {"choices": ", ".join(_quoted(value) for _name, value in choices)})
        elif plain := _plain(each):
            said.append(_(plain[0]))
        else:
            return ""
    return _(" or ").join(said)


def find_misfit(name: str, hint: Any, value: Any) -> str | None:
    """Return the error of a parameter's value, None if it fits or the annotation is not judged."""
    words = wanted(hint)
    if not words:
        return None
    if any(_fits(each, value) for each in options_of(hint)):
        return next(_within(name, hint, value), None)
    shown = HIDDEN if looks_secret(name) else _quoted(redact(value))
    return _("%(name)s: %(wanted)s is wanted, not %(value)s") % {"name": name, "wanted": words, "value": shown}


def misfits(
    function: Callable[..., Any], signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield (parameter, error) for each value that does not fit; raise TypeError if the arguments do not fit the
    signature.
    """
    hints = hints_of(function)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        parameter, hint = signature.parameters[name], hints.get(name, Any)
        given = {name: value}
        if parameter.kind is parameter.VAR_KEYWORD:
            given = value
        elif parameter.kind is parameter.VAR_POSITIONAL:
            given = {f"{name}[{index}]": each for index, each in enumerate(value)}
        elif same(value, parameter.default):
            continue
        for each, inner in given.items():
            if problem := find_misfit(each, hint, inner):
                yield each, problem


def same(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal; True is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _plain(hint: Any) -> tuple[str, Callable[[Any], bool]] | None:
    kind = get_origin(hint) or hint
    return next((entry for known, entry in _PLAIN.items() if known is kind), None)


def _fits(hint: Any, value: Any) -> bool:
    choices, plain = choices_of(hint), _plain(hint)
    return plain[1](value) if plain else any(same(value, each) for _name, each in choices)


def _within(name: str, hint: Any, value: Any) -> Iterator[str]:
    """Yield the errors inside a list or an object, if the annotation has the type of its items."""
    within = [each for each in options_of(hint) if get_origin(each) in (list, dict) and get_args(each)]
    pairs: Any = ()
    if len(within) == 1 and isinstance(value, list | tuple):
        pairs = enumerate(value)
    elif len(within) == 1 and isinstance(value, Mapping):
        pairs = value.items()
    for key, each in pairs:
        if problem := find_misfit(f"{name}[{key!r}]", get_args(within[0])[-1], each):
            yield problem


def _quoted(value: Any) -> str:
    if isinstance(value, str):
        return repr(value.value if isinstance(value, Enum) else value)
    return Truncator(json.dumps(value, ensure_ascii=False, default=repr)).chars(MOST_QUOTED)
