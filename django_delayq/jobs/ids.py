"""Names of jobs. A result's id is `<queue>.<22 characters>`, its member in Redis `j<22 characters>`.

Note [One shard for one key]
A unique key can only be compared with those of its own shard. So the shard of a job follows from the first 8 of its
characters (`broker.keys.JOB_HEAD`), and these are random or, where it has a unique key, those of the key's hash.
"""

import hashlib
import os
import re
from base64 import urlsafe_b64encode

LENGTH = 22
HEAD = 8
#: Django promises ids of less than 64 characters.
MAX_QUEUE = 63 - LENGTH - 1
_ID = re.compile(rf"([A-Za-z0-9_.-]{{1,{MAX_QUEUE}}})\.([A-Za-z0-9_-]{{{LENGTH}}})")
_MEMBER = re.compile(rf"j[A-Za-z0-9_-]{{{LENGTH}}}")


def new_members(count: int) -> list[str]:
    """Return so many new members, each with 132 random bits."""
    random = urlsafe_b64encode(os.urandom(18 * count)).decode()
    return [f"j{random[at : at + LENGTH]}" for at in range(0, 24 * count, 24)]


def is_member(text: str) -> bool:
    """Say whether this may be the name of a job."""
    return _MEMBER.fullmatch(text) is not None


def key_hash(path: str, key: str) -> str:
    """Return the hash of a task's unique key: keys of different tasks never meet."""
    digest = hashlib.sha256(f"{path}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return urlsafe_b64encode(digest)[:LENGTH].decode()


def with_head(member: str, unique: str) -> str:
    """Return the member in the shard of this key's hash. See Note [One shard for one key]."""
    return f"j{unique[:HEAD]}{member[1 + HEAD :]}"


def result_id(queue: str, member: str) -> str:
    """Return the id of the result of a member."""
    return f"{queue}.{member[1:]}"


def parse_id(text: str) -> tuple[str, str] | None:
    """Return (queue, member) of a result's id, None for anything else."""
    match = _ID.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else (match[1], f"j{match[2]}")
