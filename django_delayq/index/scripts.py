"""The Lua scripts, each called by one method of `Broker`. Parses their replies: garbage is never an error here."""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from redis import exceptions as errors
from redis.cluster import RedisCluster

from .connection import FAILURES, raise_translated
from .keys import Claim, Entry, EntryView, Shard

Argument = str | bytes | int
NAMES = ("claim", "renew", "settle", "upsert", "stats", "epoch", "probe")
#: The end of the year 9999, in ms.
LAST_MS = 253_402_300_799_999


@lru_cache(maxsize=len(NAMES))
def load(name: str) -> tuple[str, str]:
    """Return a script's text, with the prelude in front, and its SHA1 for EVALSHA."""
    folder = files(__package__).joinpath("lua")
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("_prelude", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def run_script(client: Any, name: str, calls: Sequence[tuple[tuple[bytes, ...], Sequence[Argument]]]) -> list[Any]:
    """Run a script for each call, (keys, arguments). Raises the first error; other calls may have been executed."""
    text, sha = load(name)
    try:
        requests = [("EVALSHA", sha, len(keys), *keys, *args) for keys, args in calls]
        replies = _execute(client, requests)
        if not any(isinstance(reply, errors.RedisError) for reply in replies):
            return replies
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, errors.NoScriptError)]
        again = [("EVAL", text, *requests[index][2:]) for index in unknown]
        for index, reply in zip(unknown, _execute(client, again), strict=True):
            replies[index] = reply
        for reply in replies:
            if isinstance(reply, errors.RedisError):
                raise reply
    except FAILURES as error:
        raise_translated(error)
    return replies


def _execute(client: Any, requests: Sequence[Sequence[Argument]]) -> list[Any]:
    is_pipeline = len(requests) > 1 and not isinstance(client, RedisCluster)  # which refuses EVALSHA in pipelines
    target, replies = client.pipeline(transaction=False) if is_pipeline else client, []
    for command, *values in requests:
        sent = [encode_text(item) if isinstance(item, str) else item for item in values]
        try:
            replies.append(target.execute_command(command, *sent))
        except errors.NoScriptError as error:
            replies.append(error)
    return list(target.execute(raise_on_error=False)) if is_pipeline else replies


def decode_text(value: Any) -> str:
    """Decode a reply, bytes or str. Invalid bytes become surrogates, which `encode_text` turns back."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def encode_text(member: str) -> bytes:
    return member.encode("utf-8", "surrogateescape")


#: Encodes rows as one argument: see Note [Values as one JSON text] in `lua/_prelude.lua`.
packed = json.JSONEncoder(ensure_ascii=False).encode


def parse_number(value: Any, most: int = 2**53 - 1) -> int | None:
    """Return an integer from 0 to `most`, None for nothing or garbage: what Lua's `whole` accepts."""
    try:
        found = int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return found if 0 <= found <= most else None


def read_claim(reply: Any, worker: str) -> Claim:
    """Parse the reply of claim.lua, in which garbage is ''. See `lua/_prelude.lua`, Note [Values as one JSON text]."""
    now, head, epoch, fence, *rest = json.loads(decode_text(reply))
    entries = []
    for at in range(0, len(rest), 5):
        member, point, generation, attempts, lapsed = rest[at : at + 5]
        point_ms = int(point) if point and int(point) <= LAST_MS else None
        known = int(generation) if generation else None
        claimed, dot, _ = lapsed.partition(".")  # the fence of the lease that ran out, if known
        lapsed_ms = parse_number(claimed) or None if dot else None
        entries.append(Entry(member, point_ms, known, int(attempts or 0), lapsed != "0", lapsed_ms))
    return Claim(int(now), int(head) if head else None, epoch or None, fence, f"{fence} {worker}", tuple(entries))


def read_hint(message: str) -> tuple[Shard, int] | None:
    """Parse a hint, '<queue>:<shard> <ms>'."""
    head, _, score = message.partition(" ")
    queue, _, digits = head.rpartition(":")
    when = parse_number(score)
    known = queue and digits.isascii() and digits.isdigit() and len(digits) < 10
    return (Shard(queue, int(digits)), when) if known and when is not None else None


def read_view(scores: Sequence[Any], point: Any, generation: Any, lease: Any, attempts: Any) -> EntryView:
    """Parse what a shard holds of a member; `scores` in the order of `broker.SCORED`."""
    points, ready, jobs, jobs_ready = scores
    score = jobs if points is None else points
    if score is None and (ready is not None or jobs_ready is not None):
        score = 0
    read = parse_number(point, LAST_MS), parse_number(score), parse_number(generation)
    garbage = any(new is None and old is not None for new, old in zip(read, (point, score, generation), strict=True))
    return EntryView(*read, lease is not None, attempts is not None, garbage)
