"""Ids of results, tokens and hashes of unique keys. A result's id is `<primary key>-<22 random characters>`."""

import hashlib
import os
import re
from base64 import urlsafe_b64encode

LENGTH = 22
_ID = re.compile(rf"([1-9][0-9]{{0,17}})-([A-Za-z0-9_-]{{{LENGTH}}})")


def new_tokens(count: int) -> list[str]:
    """Return so many tokens, each of 132 random bits."""
    random = urlsafe_b64encode(os.urandom(18 * count)).decode()
    return [random[at : at + LENGTH] for at in range(0, 24 * count, 24)]


def key_hash(path: str, key: str) -> str:
    """Return the hash of a task's unique key: 32 hexadecimal digits, which every collation compares exactly.

    Keys of different tasks never meet.
    """
    return hashlib.sha256(f"{path}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def result_id(pk: int, token: str) -> str:
    """Return the id of a job's result; Django keeps it below 64 characters."""
    return f"{pk}-{token}"


def parse_id(text: object) -> tuple[int, str] | None:
    """Return (primary key, token) of a result's id, None for anything else."""
    match = _ID.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else (int(match[1]), match[2])
