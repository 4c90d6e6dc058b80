"""Checks on values that people type. Reads no database."""

import json
import re
from typing import Any

from ..exceptions import InvalidArguments

MAX_ARGUMENT_BYTES = 64 * 1024
MAX_DEPTH = 32
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_UNSTORABLE_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000|[\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Say whether every database stores a text: it has no NUL and no half of a surrogate pair."""
    return not _UNSTORABLE.search(text)


def read_key(text: str) -> int | None:
    """Return the primary key that a text says, None where it says none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def validate_json(args: Any, kwargs: Any) -> None:
    """Check that arguments are a list and a dict of plain JSON of at most 64 KiB.

    Raises:
        InvalidArguments: Names what is wrong: the container, NaN or infinity, a NUL character, depth or size.
    """
    if not isinstance(args, list):
        raise InvalidArguments(f"args must be a JSON list such as [1, 2], not {type(args).__name__}.")
    if not isinstance(kwargs, dict):
        raise InvalidArguments(f'kwargs must be a JSON object such as {{"days": 2}}, not {type(kwargs).__name__}.')
    size = len(storable_json([args, kwargs]))
    if size > MAX_ARGUMENT_BYTES:
        raise too_large(size)


def validate_call(args: Any, kwargs: Any) -> None:
    """Check that the arguments of a job, a list and a dict of JSON's types, are stored by every database.

    Raises:
        InvalidArguments: Names what is wrong, as `validate_json` does.
    """
    try:
        text = _encode([args, kwargs])
    except (TypeError, ValueError, RecursionError) as error:
        raise not_plain(error) from None
    if what := find_unstorable(text):
        raise InvalidArguments(f"The arguments contain {what}.")
    size = len(text.encode())
    if size > MAX_ARGUMENT_BYTES:
        raise too_large(size)


def find_unstorable(text: str) -> str:
    """Return what it is in a text of JSON, made without escapes, that not every database stores; '' for nothing."""
    found = _UNSTORABLE_JSON.search(text)
    if found is None:
        return ""
    if found[0].startswith("\\"):
        return "a NUL character, which PostgreSQL cannot store"
    return "half of a surrogate pair, which no database can store"


def too_large(size: int) -> InvalidArguments:
    """Return the error about arguments of so many bytes."""
    return InvalidArguments(
        f"The arguments are {size:,} bytes of JSON; at most {MAX_ARGUMENT_BYTES:,} (64 KiB) are allowed. "
        "Store large values elsewhere and pass a key."
    )


def not_plain(error: Exception) -> InvalidArguments:
    """Return the error about arguments that JSON does not hold, as its own error says."""
    return InvalidArguments(
        f"The arguments are not plain JSON: {error}. Allowed are text, finite numbers, true, false, null, "
        "lists and objects."
    )


def storable_json(value: Any) -> bytes:
    """Return JSON of any size as every database can store it, in UTF-8.

    Raises:
        InvalidArguments: Names what is wrong: NaN or infinity, a NUL character, half of a surrogate pair, depth.
    """
    _check_shape(value)
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:
        raise InvalidArguments("The arguments contain half of a surrogate pair, which no database can store.") from None
    except (TypeError, ValueError) as error:
        raise not_plain(error) from None


def _check_shape(value: Any, depth: int = 0) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict | list) and value:
        if depth > MAX_DEPTH:
            raise InvalidArguments(f"The arguments are nested more than {MAX_DEPTH} levels deep.")
        for key in value if isinstance(value, dict) else ():
            _check_text(key)
        for item in value.values() if isinstance(value, dict) else value:
            _check_shape(item, depth + 1)


def _check_text(text: Any) -> None:
    if not isinstance(text, str):
        raise InvalidArguments(f"JSON object keys are text, not {text!r}.")
    if "\0" in text:
        raise InvalidArguments("The arguments contain a NUL character, which PostgreSQL cannot store.")
