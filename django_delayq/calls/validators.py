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
    size = len(storable_json([args, kwargs]))
    if size > MAX_ARGUMENT_BYTES:
        raise too_large(size)


def validate_call(args: Any, kwargs: Any) -> None:
    """Raise InvalidArguments unless every database can store a job's arguments: a list and a dict of JSON's types."""
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
    """Return a description of what not every database stores in a JSON text without escapes; '' for nothing."""
    found = _UNSTORABLE_JSON.search(text)
    if found is None:
        return ""
    if found[0].startswith("\\"):
        return "a NUL character, which PostgreSQL cannot store"
    return "half of a surrogate pair, which no database can store"


def too_large(size: int) -> InvalidArguments:
    """Return the error for arguments of `size` bytes."""
    return InvalidArguments(
        f"The arguments are {size:,} bytes of JSON; at most {MAX_ARGUMENT_BYTES:,} (64 KiB) are allowed. "
        "Store large values elsewhere and pass a key."
    )


def not_plain(error: Exception) -> InvalidArguments:
    """Return the error for arguments that are not JSON, with the encoder's message."""
    return InvalidArguments(
        f"The arguments are not plain JSON: {error}. Allowed are text, finite numbers, true, false, null, "
        "lists and objects."
    )


def storable_json(value: Any) -> bytes:
    """Return JSON of any size, in UTF-8; raise InvalidArguments if not every database can store it."""
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
