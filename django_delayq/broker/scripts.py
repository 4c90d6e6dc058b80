"""The Lua scripts, read from the package once. One file per command; each is called by one method of `Broker`."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from redis import exceptions as errors

from .cluster import pipelines
from .exchange import Argument, Exchange, is_plain, pack

NAMES = (
    "claim", "renew", "settle", "upsert", "remove", "enqueue", "stats", "epoch", "probe",
    "job_enqueue", "job_claim", "job_renew", "job_settle", "job_change", "job_stats",
)  # fmt: skip


@lru_cache(maxsize=len(NAMES))
def load(name: str) -> tuple[str, str]:
    """Return a script's text, with its preludes in front, and its SHA1 as EVALSHA wants it."""
    folder = files(__package__).joinpath("lua")
    kind = "_jobs" if name.startswith("job_") else "_points"
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in (kind, "_prelude", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One run of a script. `keys` are the same for all runs in one place, `more` stand behind them."""

    keys: tuple[str | bytes, ...]
    args: Sequence[Argument]
    more: Sequence[str | bytes] = ()


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

        In a cluster each takes a round trip of its own. Others may have run where one fails: the first error is raised.
        """
        text, sha = load(name)
        replies = self._send("EVALSHA", sha, calls)
        for reply in replies:
            if isinstance(reply, errors.RedisError):
                break
        else:
            return replies
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, errors.NoScriptError)]
        for index, reply in zip(unknown, self._send("EVAL", text, [calls[at] for at in unknown]), strict=True):
            replies[index] = reply
        for reply in replies:
            if isinstance(reply, errors.RedisError):
                raise reply
        return replies

    def _send(self, command: str, script: str, calls: Sequence[Call]) -> list[Any]:
        """Return the replies, an error reply as its exception."""
        if not calls:
            return []
        if self._exchange is not None:
            return self._exchange.send([_request(command, script, *call) for call in calls])
        if len(calls) > 1 and pipelines(self._client):
            pipeline = self._client.pipeline(transaction=False)
            for call in calls:
                _queue(pipeline, command, script, call)
            return list(pipeline.execute(raise_on_error=False))
        return [self._execute(command, script, call) for call in calls]

    def _execute(self, command: str, script: str, call: Call) -> Any:
        """Let the client find out where the script belongs."""
        try:
            return _queue(self._client, command, script, call)
        except errors.NoScriptError as error:
            return error


def _queue(client: Any, command: str, script: str, call: Call) -> Any:
    run = client.eval if command == "EVAL" else client.evalsha
    return run(script, len(call.keys) + len(call.more), *call.keys, *call.more, *call.args)


def _request(
    command: str, script: str, keys: tuple[str | bytes, ...], args: Sequence[Any], more: Sequence[Any]
) -> bytes:
    make = _head if command == "EVALSHA" else _head.__wrapped__  # a text is sent once
    head = make(command, script, keys, len(more))
    return b"*%d\r\n%b%b%b" % (3 + len(keys) + len(more) + len(args), head, pack(more), pack(args))


@lru_cache(maxsize=4096)
def _head(command: str, script: str, keys: tuple[str | bytes, ...], more: int) -> bytes:
    """Return what is the same for all runs of a script in one place."""
    return pack((command, script, len(keys) + more, *keys))
