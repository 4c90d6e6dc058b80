"""What annotations say of arguments: what is understood is judged, everything else is left alone."""

import inspect
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypedDict, Union

import pytest
from django.db.models import TextChoices

from django_delayq.calls.annotations import describe_wanted, find_misfit, find_misfits, get_hints, list_choices

if TYPE_CHECKING:
    from nowhere import Missing


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Size(TextChoices):
    SMALL = "s", "Small one"


class Odd(Enum):
    PAIR = (1, 2)


class Bits(Flag):
    ONE = 1


class Box(TypedDict):
    width: int


FIT = [
    (bool, [True, False], [1, 0, "true", None, []]),
    (int, [0, -5, 10**30], [True, 1.0, 1.5, "1", None, [1]]),
    (float, [1, 1.5, -0.0], [True, "1", None]),
    (str, ["", "x", Size.SMALL], [1, None, True, ["x"]]),
    (date, ["2026-01-31"], ["2026-02-30", "2026-01-31T09:00", "soon", "", 20260131, None]),
    (datetime, ["2026-01-31T09:00:00+01:00", "2026-01-31 09:00", "2026-01-31T09:00Z"], ["9:00", "", 5]),
    (list, [[], [1, "x"], (1,)], ["x", {}, None, 1]),
    (dict, [{}, {"a": 1}], ["x", [], None]),
    (list[int], [[], [1, 2], ["x"]], ["x", None]),
    (dict[str, int], [{}, {"a": 1}], ["x", []]),
    (Literal["a", 1, None], ["a", 1, None], ["b", True, 2]),
    (Literal[True], [True], [1, "True"]),
    (Colour, ["red", "blue", Colour.BLUE.value], ["RED", "green", 1]),
    (Level, [1, Level.LOW], [2, True, "1"]),
    (Size, ["s", Size.SMALL], ["Small one", ""]),
    (int | None, [1, None], ["x"]),
    (Optional[list[int]], [None, [1]], ["x", 1]),  # noqa: UP045 - as people write it
    (Union[int, str], [1, "x"], [None, 1.5]),  # noqa: UP007
    (list[int] | list[str], [[1], ["x"], [1, "x"]], ["x"]),
    (list[Decimal], [["1"], [None]], ["x"]),
    (Annotated[int, "of something"], [1], ["x"]),
]
UNKNOWN = [
    Any, object, Decimal, bytes, tuple[int, ...], Sequence[str], Odd, Bits, Box, int | Decimal, "Missing", 5,
]  # fmt: skip


def function_of(hint):
    def function(x):
        """Do nothing."""

    function.__annotations__ = {"x": hint}
    return function


@pytest.mark.parametrize(("hint", "good", "bad"), FIT, ids=[str(row[0]) for row in FIT])
def test_what_is_understood_is_judged(hint, good, bad):
    function = function_of(hint)
    found = get_hints(function)["x"]
    assert [value for value in good if find_misfit("x", found, value)] == []
    assert [value for value in bad if not find_misfit("x", found, value)] == []


@pytest.mark.parametrize("hint", UNKNOWN, ids=str)
def test_everything_else_is_left_alone(hint):
    function = function_of(hint)
    for value in (None, 1, "x", [1, "x"], {"a": 1}):
        assert list(find_misfits(function, inspect.signature(function), [value], {})) == []


def test_annotations_are_read_where_they_can_be_and_through_decorators():
    def plain(a: "int", b: "Missing", *rest: "int", c: "list[Colour]" = (), **more: "str") -> "Missing":
        """Do nothing."""

    @wraps(plain)
    def around(*args, **kwargs):
        return plain(*args, **kwargs)

    for function in (plain, around):
        assert get_hints(function).keys() >= {"a", "c", "rest", "more"}
        call = find_misfits(function, inspect.signature(function), ["x", "y", 1, "z"], {"c": "pink", "d": 1})
        assert dict(call) == {
            "a": "a must be a whole number, not 'x'",
            "c": "c must be a list, not 'pink'",
        }


def test_a_default_is_always_right():
    def function(x: int = None, y: bool = 1) -> None:  # noqa: RUF013 - as people write it
        """Do nothing."""

    signature = inspect.signature(function)
    assert list(find_misfits(function, signature, [None], {"y": 1})) == []
    assert [name for name, _ in find_misfits(function, signature, ["x"], {"y": 0})] == ["x", "y"]


def test_values_of_secret_names_are_not_quoted():
    assert "hunter2" not in find_misfit("api_token", int, "hunter2")
    assert "hunter2" not in find_misfit("options", str, {"password": "hunter2"})
    assert "hunter2" not in find_misfit("options", list[int], {"deep": [{"password": "hunter2"}]})
    assert "hunter2" not in find_misfit("server", int, "https://me:hunter2@example.org")


def test_words_and_choices_are_for_people():
    assert describe_wanted(int | None) == "a whole number or null"
    assert describe_wanted(Literal["a", True]) == "one of 'a', true"
    assert describe_wanted(Decimal) == describe_wanted(int | Decimal) == ""
    assert list_choices(Size) == [("Small one", "s")]
    assert list_choices(Colour) == [("RED", "red"), ("BLUE", "blue")]


def test_a_hint_without_a_hash_is_not_judged() -> None:
    def documented(x: ["a", "b"], y: {"doc": 1}) -> None:  # noqa: F821
        """Annotations that are no types."""

    assert list(find_misfits(documented, inspect.signature(documented), [1], {"y": "z"})) == []
