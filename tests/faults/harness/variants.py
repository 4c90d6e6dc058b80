"""Variants of a test, of which some stand for all in the quick form."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def variants(values: Iterable[Any], *, quick: Collection[Any]) -> list[Any]:
    """Return parameters for `parametrize`: all of them, those of `quick` marked so."""
    values = list(values)
    if strange := [value for value in quick if value not in values]:
        raise ValueError(f"{strange} are no variants; there are {values}.")
    return [_param(value, value in quick) for value in values]


def _param(value: Any, quick: bool) -> Any:
    marks = [pytest.mark.quick] if quick else []
    return pytest.param(*(value if isinstance(value, tuple) else [value]), marks=marks)
