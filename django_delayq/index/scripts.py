"""The Lua scripts, read from the package once; each is called by one method of `Broker`. Parses their replies: garbage
is never an error here.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from redis import exceptions as errors

from .cluster import pipelines
from .connection import FAILURES, raise_translated
from .keys import Claim, Entry, Settled

Argument = str | bytes | int
NAMES = ("claim", "renew", "settle", "upsert", "stats", "epoch", "probe")


@lru_cache(maxsize=len(NAMES))
def load(name: str) -> tuple[str, str]:
    """Return a script's text, with the prelude in front, and its SHA1 for EVALSHA."""
    folder = files(__package__).joinpath("lua")
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("_prelude", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One run of a script. `keys` are the same for all runs in one shard."""

    keys: tuple[bytes, ...]
    args: Sequence[Argument]


class Scripts:
    """Runs scripts on the servers of one client. Thread-safe."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """Run a script for each call, in one round trip; two if the server does not know it; one per call in a
        cluster.

        Raises the first error, as `translated` does; other calls may have been executed.
        """
        text, sha = load(name)
        try:
            requests = [("EVALSHA", sha, len(keys), *keys, *args) for keys, args in calls]
            replies = self._execute(requests)
            if not any(isinstance(reply, errors.RedisError) for reply in replies):
                return replies
            unknown = [index for index, reply in enumerate(replies) if isinstance(reply, errors.NoScriptError)]
            again = [("EVAL", text, *requests[index][2:]) for index in unknown]
            for index, reply in zip(unknown, self._execute(again), strict=True):
                replies[index] = reply
            for reply in replies:
                if isinstance(reply, errors.RedisError):
                    raise reply
        except FAILURES as error:
            raise_translated(error)
        return replies

    def _execute(self, requests: Sequence[Sequence[Argument]]) -> list[Any]:
        if len(requests) > 1 and pipelines(self._client):
            pipeline = self._client.pipeline(transaction=False)
            for request in requests:
                _run(pipeline, request)
            return list(pipeline.execute(raise_on_error=False))
        return [_run(self._client, request) for request in requests]


def _run(client: Any, request: Sequence[Argument]) -> Any:
    command, *values = request
    try:
        return client.execute_command(command, *(wire(item) if isinstance(item, str) else item for item in values))
    except errors.NoScriptError as error:
        return error


#: The end of the year 9999, in ms.
LAST_MS = 253_402_300_799_999


def text(value: Any) -> str:
    """Decode a reply, bytes or str. Invalid bytes become surrogates, which `wire` turns back."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def wire(member: str) -> bytes:
    """Return a member as Redis stores it."""
    return member.encode("utf-8", "surrogateescape")


#: Encodes rows as one argument: see Note [One text] in `lua/_prelude.lua`.
packed = json.JSONEncoder(ensure_ascii=False).encode


def number(value: Any) -> int | None:
    """Return an integer from 0 to 2^53 - 1, None for nothing or garbage: what Lua's `whole` accepts."""
    if value is None:
        return None
    try:
        found = int(float(value))
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < 2**53 else None


def claimed_ms(holder: str) -> int | None:
    """Return when a fence, or the holder that begins with it, was claimed, in ms of the server's clock; None if it is
    not a fence.
    """
    found, dot, _ = holder.partition(".")
    return number(found) or None if dot else None


def clock_ms(value: Any) -> int:
    seconds, micros = value
    return int(seconds) * 1000 + int(micros) // 1000


def head_ms(value: Any) -> int | None:
    """Return a score as ms: negative (damaged) scores as 0, so that they come due; None for never."""
    score = float(value)
    return None if score >= 2**53 else int(max(0.0, score))


def instant_ms(value: Any) -> int | None:
    """Return ms since the epoch; None for nothing, garbage and instants after the year 9999."""
    found = number(value)
    return found if found is not None and found <= LAST_MS else None


def read_claim(reply: Any, worker: str) -> Claim:
    """Parse the reply of claim.lua, in which garbage is ''. See Note [One text] in `lua/_prelude.lua`."""
    now, head, epoch, fence, *rest = json.loads(text(reply))
    entries = []
    for at in range(0, len(rest), 5):
        member, point, generation, attempts, lapsed = rest[at : at + 5]
        point_ms = int(point) if point and int(point) <= LAST_MS else None
        lapsed_ms = None if lapsed == "0" else claimed_ms(lapsed)
        known = int(generation) if generation else None
        entries.append(Entry(member, point_ms, known, int(attempts or 0), lapsed != "0", lapsed_ms))
    return Claim(int(now), int(head) if head else None, epoch or None, fence, f"{fence} {worker}", tuple(entries))


def read_settled(reply: Any) -> Settled:
    now, head, *replies = json.loads(text(reply))
    return Settled(int(now), int(head) if head else None, [int(item) for item in replies])
