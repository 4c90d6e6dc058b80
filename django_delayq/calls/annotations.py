"""Checks JSON arguments against a task's annotations. Judges only the annotations it supports; calls nothing.

Note [Annotations are checked for new arguments only]
Arguments are checked when a user or code enters them, never before an execution: a changed or wrong annotation must not
stop a schedule that ran yesterday. A task gets its arguments as JSON returns them: a date is its ISO text, an enum
member its value. These annotations are judged: the types in `_PLAIN`, lists and dicts without their contents,
`Literal`, enums of plain values, and unions of these. `*args`, `**kwargs` and values equal to the default are not.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from enum import Enum, Flag
from functools import lru_cache, partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from ..text import HIDDEN, is_secret_name, redact

#: Maximum characters quoted of a list or an object.
MOST_QUOTED = 100


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_iso(kind: type[date], value: Any) -> bool:
    with suppress(ValueError):
        return isinstance(value, str) and bool(kind.fromisoformat(value))
    return False


#: Description and predicate.
_Rule = tuple[str, Callable[[Any], bool]]
_PLAIN: dict[Any, _Rule] = {
    bool: (gettext_noop("true or false"), lambda value: isinstance(value, bool)),
    int: (gettext_noop("a whole number"), lambda value: _is_number(value) and isinstance(value, int)),
    float: (gettext_noop("a number"), _is_number),
    str: (gettext_noop("a text"), lambda value: isinstance(value, str)),
    date: (gettext_noop("a date such as 2026-01-31"), partial(_is_iso, date)),
    datetime: (gettext_noop("a date and time such as 2026-01-31T09:00:00+01:00"), partial(_is_iso, datetime)),
    list: (gettext_noop("a list"), lambda value: isinstance(value, list | tuple)),
    dict: (gettext_noop("a JSON object"), lambda value: isinstance(value, Mapping)),
    NoneType: (gettext_noop("null"), lambda value: value is None),
}


@lru_cache(maxsize=1000)
def get_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function's parameters, without those that cannot be evaluated."""
    plain, found = inspect.unwrap(function), {}
    for name, annotation in inspect.signature(plain).parameters.items():
        with suppress(Exception):  # e.g. a name that is imported for type checkers only
            alone = SimpleNamespace(__annotations__={name: annotation.annotation})
            found[name] = get_type_hints(alone, getattr(plain, "__globals__", {}))[name]
    return found


def list_choices(hint: Any) -> list[tuple[str, Any]]:
    """Return (name, value) of each choice of a `Literal` or an enum of plain values; empty for other annotations."""
    if get_origin(hint) is Literal:
        return [(str(each), each.value if isinstance(each, Enum) else each) for each in get_args(hint)]
    if not isinstance(hint, type) or not issubclass(hint, Enum) or issubclass(hint, Flag):
        return []
    found = [(str(getattr(member, "label", member.name)), member.value) for member in hint]
    return found if all(isinstance(value, str | int | float | None) for _name, value in found) else []


def list_options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def describe_wanted(hint: Any) -> str:
    """Return a description of the values that an annotation allows, '' if it is not judged."""
    return _(" or ").join(words for words, _fits in _list_rules(hint))


def find_misfit(name: str, hint: Any, value: Any) -> str | None:
    """Return the error of a parameter's value, None if it fits or the annotation is not judged."""
    rules = _list_rules(hint)
    if not rules or any(fits(value) for _words, fits in rules):
        return None
    shown = HIDDEN if is_secret_name(name) else _quote(redact(value))
    values = {"name": name, "wanted": describe_wanted(hint), "value": shown}
    return _("%(name)s must be %(wanted)s, not %(value)s") % values


def find_misfits(
    function: Callable[..., Any], signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield (parameter, error) for each value that does not fit; raise TypeError if the signature does not fit."""
    hints = get_hints(function)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        parameter = signature.parameters[name]
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if several or is_same(value, parameter.default):
            continue
        if problem := find_misfit(name, hints.get(name, Any), value):
            yield name, problem


def is_same(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal; True is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _list_rules(hint: Any) -> list[_Rule]:
    """Return the rule of each member of a union; an empty list if a member is not judged."""
    rules: list[_Rule] = []
    for each in list_options(hint):
        kind = get_origin(each) or each  # compared by identity: it may have no hash
        if choices := list_choices(each):
            quoted = ", ".join(_quote(value) for _name, value in choices)
            rules.append((_("one of %(choices)s") % {"choices": quoted}, partial(_is_choice, choices)))
        elif rule := next((rule for known, rule in _PLAIN.items() if known is kind), None):
            rules.append((_(rule[0]), rule[1]))
        else:
            return []
    return rules


def _is_choice(choices: list[tuple[str, Any]], value: Any) -> bool:
    return any(is_same(value, each) for _name, each in choices)


def _quote(value: Any) -> str:
    if isinstance(value, str):
        return repr(value.value if isinstance(value, Enum) else value)
    return Truncator(json.dumps(value, ensure_ascii=False, default=repr)).chars(MOST_QUOTED)
