"""The Lua scripts, read from the package once. One file per command; each is called by one method of `Broker`.

Their replies as values, and members as they stand in Redis. Garbage is never an error here.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from redis import exceptions as errors

from .cluster import pipelines
from .connection import FAILURES, raise_translated
from .exchange import Argument, Exchange, is_plain
from .types import Settled

NAMES = (
    "claim", "renew", "settle", "upsert", "remove", "stats", "epoch", "probe", "count", "mend",
)  # fmt: skip


@lru_cache(maxsize=len(NAMES))
def load(name: str) -> tuple[str, str]:
    """Return a script's text, with the prelude in front, and its SHA1 as EVALSHA wants it."""
    folder = files(__package__).joinpath("lua")
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("_prelude", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One run of a script. `keys` are the same for all runs in one shard, `more` stand behind them."""

    keys: tuple[str, ...]
    args: Sequence[Argument]
    more: Sequence[str] = ()


class Scripts:
    """Runs scripts on one client's servers. Safe to share between threads."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._exchange = Exchange(client.connection_pool) if is_plain(client) else None

    def run(self, name: str, call: Call) -> Any:
        """Run a script. Where the server does not know it (restart, SCRIPT FLUSH), its text is sent: it did not run."""
        return self.run_each(name, [call])[0]

    def run_each(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """Run a script for each call, in one round trip; two where the server does not know it.

        In a cluster each takes a round trip of its own. Others may have run where one fails: the first error is raised,
        as `translated` has it.
        """
        text, sha = load(name)
        try:
            replies = self._send("EVALSHA", sha, calls)
            if not any(isinstance(reply, errors.RedisError) for reply in replies):
                return replies
            unknown = [index for index, reply in enumerate(replies) if isinstance(reply, errors.NoScriptError)]
            for index, reply in zip(unknown, self._send("EVAL", text, [calls[at] for at in unknown]), strict=True):
                replies[index] = reply
            for reply in replies:
                if isinstance(reply, errors.RedisError):
                    raise reply
        except FAILURES as error:
            raise_translated(error)
        return replies

    def _send(self, command: str, script: str, calls: Sequence[Call]) -> list[Any]:
        """Return the replies, an error reply as its exception."""
        if not calls:
            return []
        requests = [(command, script, len(keys) + len(more), *keys, *more, *args) for keys, args, more in calls]
        if self._exchange is not None:
            return self._exchange.send(requests)
        if len(calls) > 1 and pipelines(self._client):
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


#: The end of the year 9999 in ms.
LAST_MS = 253_402_300_799_999


def text(value: Any) -> str:
    """Accept bytes and str replies. Garbage bytes become surrogates, never an error, and `wire` turns them back."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def wire(member: str) -> bytes:
    """Return a member as it stands in Redis."""
    return member.encode("utf-8", "surrogateescape")


def number(value: Any) -> int | None:
    """Return a whole number from 0 to 2^53, or None for nothing and for garbage: what Lua's `whole` accepts."""
    if value is None:
        return None
    try:
        found = int(float(value))
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < 2**53 else None


def claimed_ms(holder: str) -> int | None:
    """Return when a fence was given, by the server's clock; it may be followed by more. None for what is none."""
    found, dot, _ = holder.partition(".")
    return (number(found) or 0) // 1024 or None if dot else None


def held_by(holder: str) -> tuple[str, int | None]:
    """Return a holder's worker, '' where it has none, and the ms of its claim, None for garbage."""
    fence, _, worker = holder.partition(" ")
    return worker, claimed_ms(fence)


def clock_ms(value: Any) -> int:
    seconds, micros = value
    return int(seconds) * 1000 + int(micros) // 1000


def head_ms(value: Any) -> int | None:
    """Return a score as ms: damaged ones of the past as 0, so that they come due; None for none, and for never."""
    score = float(value) if value not in ("", b"", "stale", b"stale") else math.inf
    return None if score >= 2**53 else int(max(0.0, score))


def instant_ms(value: Any) -> int | None:
    """Return ms since the epoch, or None for nothing, for garbage and for what lies beyond the calendar."""
    found = number(value)
    return found if found is not None and found <= LAST_MS else None


def listed(reply: Any) -> list[Any]:
    """Return the values of a reply of one text: see Note [One text] in `lua/_prelude.lua`."""
    return json.loads(text(reply))  # type: ignore[no-any-return]


def settled(reply: Any) -> Settled:
    now, head, *replies = listed(reply)
    return Settled(int(now), head_ms(head), [int(item) for item in replies])
