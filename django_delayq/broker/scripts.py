"""The Lua scripts, read from the package once. One file per command; each is called by one method of `Broker`."""

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Any

from redis import exceptions as errors

NAMES = (
    "claim", "renew", "settle", "release", "retry", "upsert", "remove", "enqueue", "stats", "epoch",
)  # fmt: skip


@lru_cache(maxsize=len(NAMES))
def load(name: str) -> tuple[str, str]:
    """Return a script's text, with the prelude in front, and its SHA1 as EVALSHA wants it."""
    folder = files(__package__).joinpath("lua")
    text = folder.joinpath("_prelude.lua").read_text("utf-8") + folder.joinpath(f"{name}.lua").read_text("utf-8")
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def run(client: Any, name: str, keys: list[str], args: list[Any]) -> Any:
    """Run a script. Where the server does not know it (restart, SCRIPT FLUSH), send its text: it did not run before."""
    text, sha = load(name)
    try:
        return client.evalsha(sha, len(keys), *keys, *args)
    except errors.NoScriptError:
        return client.eval(text, len(keys), *keys, *args)
