"""Validates values that users enter. Reads no database."""

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
    """Return whether every database can store a text: without NUL and surrogates."""
    return not _UNSTORABLE.search(text)


def read_key(text: str) -> int | None:
    """Return the primary key in a text, None if it is not one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def validate_json(args: Any, kwargs: Any) -> None:
    """Raise InvalidArguments unless arguments are a list and a dict of plain JSON of at most 64 KiB."""
    if not isinstance(args, list):
        raise InvalidArguments(f"args must be a JSON list such as [1, 2], not {type(args).__name__}.")
    if not isinstance(kwargs, dict):
        raise InvalidArguments(f'kwargs must be a JSON object such as {{"days": 2}}, not {type(kwargs).__name__}.')
    _check_shape([args, kwargs])
    validate_call(args, kwargs)


def validate_call(args: Any, kwargs: Any) -> None:
    """Raise InvalidArguments unless every database can store a job's arguments, whose keys are text already."""
    size = len(_encode_storable([args, kwargs]))
    if size > MAX_ARGUMENT_BYTES:
        raise InvalidArguments(
            f"The arguments are {size:,} bytes of JSON; at most {MAX_ARGUMENT_BYTES:,} (64 KiB) are allowed. "
            "Store large values elsewhere and pass a key."
        )


def encode_json(value: Any) -> bytes:
    """Return JSON of any size, in UTF-8; raise InvalidArguments if not every database can store it."""
    _check_shape(value)
    return _encode_storable(value)


def _encode_storable(value: Any) -> bytes:
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"The arguments are not plain JSON: {error}. Allowed are text, finite numbers, true, false, null, "
            "lists and objects."
        ) from None
    if what := find_unstorable(text):
        raise InvalidArguments(f"The arguments contain {what}.")
    return text.encode()


def find_unstorable(text: str) -> str:
    """Return what some database cannot store in a JSON text that has no escapes, in words; '' if nothing."""
    found = _UNSTORABLE_JSON.search(text)
    if found is None:
        return ""
    if found[0].startswith("\\"):
        return "a NUL character, which PostgreSQL cannot store"
    return "half of a surrogate pair, which no database can store"


def _check_shape(value: Any, depth: int = 0) -> None:
    if isinstance(value, dict | list) and value:
        if depth > MAX_DEPTH:
            raise InvalidArguments(f"The arguments are nested more than {MAX_DEPTH} levels deep.")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise InvalidArguments(f"JSON object keys are text, not {key!r}.")
            value = list(value.values())
        for item in value:
            _check_shape(item, depth + 1)
