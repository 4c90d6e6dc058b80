"""The Lua scripts, read from the package once. One file per command; each is called by one method of `Broker`."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from redis import exceptions as errors

from .cluster import pipelines

NAMES = (
    "claim", "renew", "settle", "release", "retry", "upsert", "remove", "enqueue", "stats", "epoch", "probe",
    "job_enqueue", "job_claim", "job_renew", "job_settle", "job_change", "job_stats",
)  # fmt: skip


@lru_cache(maxsize=len(NAMES))
def load(name: str) -> tuple[str, str]:
    """Return a script's text, with its preludes in front, and its SHA1 as EVALSHA wants it."""
    folder = files(__package__).joinpath("lua")
    kind = "_jobs" if name.startswith("job_") else "_points"
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in (kind, "_prelude", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def run(client: Any, name: str, keys: Sequence[str | bytes], args: list[Any]) -> Any:
    """Run a script. Where the server does not know it (restart, SCRIPT FLUSH), send its text: it did not run before."""
    text, sha = load(name)
    try:
        return client.evalsha(sha, len(keys), *keys, *args)
    except errors.NoScriptError:
        return client.eval(text, len(keys), *keys, *args)


def run_each(client: Any, name: str, calls: Sequence[tuple[Sequence[str | bytes], list[Any]]]) -> list[Any]:
    """Run a script for each (keys, arguments), in one round trip; two where the server does not know it.

    In a cluster each takes a round trip of its own. Others may have run where one fails: the first error is raised.
    """
    if not calls:
        return []
    if len(calls) == 1 or not pipelines(client):
        return [run(client, name, names, args) for names, args in calls]
    text, sha = load(name)
    pipeline = client.pipeline(transaction=False)
    for names, args in calls:
        pipeline.evalsha(sha, len(names), *names, *args)
    replies = pipeline.execute(raise_on_error=False)
    unknown = [index for index, reply in enumerate(replies) if isinstance(reply, errors.NoScriptError)]
    for index in unknown:
        names, args = calls[index]
        pipeline.eval(text, len(names), *names, *args)
    for index, reply in zip(unknown, pipeline.execute(raise_on_error=False) if unknown else [], strict=True):
        replies[index] = reply
    for reply in replies:
        if isinstance(reply, errors.RedisError):
            raise reply
    return list(replies)
