"""Real worker processes on the test database, and what the tests ask of them."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import connection

from tests.acceptance.warm import Forker, WarmProcess

ROOT = Path(__file__).resolve().parents[2]
#: Ends what would never end. No limit of the product, which a test asserts on the time that something took: where other
#: work is going on, an interpreter alone may need half a minute until it works.
PATIENCE_SECONDS = 120.0


def command_environment(environment: Mapping[str, str] | None = None, **options: Any) -> dict[str, str]:
    """Return the environment of a command on the test database; `options` are keys of DELAYQ, `environment` wins."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DELAYQ_REDIS_URL": settings.CACHES["default"]["LOCATION"],
        "DELAYQ_TEST_CACHE_OPTIONS": json.dumps(settings.CACHES["default"].get("OPTIONS", {})),
        "DELAYQ_TEST_DATABASE": str(connection.settings_dict["NAME"]),
        "DELAYQ_TEST_SCRATCH": str(settings.SCRATCH),
        "DELAYQ_TEST_OPTIONS": json.dumps({**settings.DELAYQ, **options}),
        **(environment or {}),
    }


def start_worker(
    *arguments: str,
    output: IO[bytes],
    environment: Mapping[str, str] | None = None,
    cold: bool = False,
    redirect: str = "",
    **options: Any,
) -> subprocess.Popen[bytes] | WarmProcess:
    """Start `delayq_worker` on the test database; `options` are keys of DELAYQ, `environment` wins over all else.

    `redirect`: what a shell does with the streams of a cold one before it starts.

    Warm, unless it is to be `cold` or needs an interpreter of its own: see `_needs_an_interpreter`.
    """
    command = ["delayq_worker", *arguments]
    variables = command_environment(environment, **options)
    if not (cold or _needs_an_interpreter(arguments, environment or {})):
        return _forker().start(command, variables, output)
    return subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "django", *command],
        env=variables,
        cwd=ROOT,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


@cache
def _forker() -> Forker:
    """Return the process that forks the warm workers of this one, started with the first of them."""
    return Forker(command_environment({"DELAYQ_REDIS_URL": "redis://127.0.0.1:1/0"}), ROOT)


def _needs_an_interpreter(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Say whether a worker cannot be a warm one: other modules are to be loaded, or the start itself is the matter."""
    return (
        not hasattr(os, "pidfd_open")
        or any(not name.startswith("DELAYQ_") for name in environment)
        or any(flag in arguments for flag in ("--processes", "--reload"))
    )


@contextmanager
def worker(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes] | WarmProcess]:
    """Run `delayq_worker` as a process of its own; `options` are keys of DELAYQ. Killed at the end, if still there.

    What it printed is printed again at the end, so that a failing test shows it.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    process = start_worker(*arguments, output=output, **options)
    process.stdout_file = output  # type: ignore[union-attr]  # read by tests while it runs
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        output.seek(0)
        print(f"-- worker {process.pid} said:", output.read().decode()[-3000:], sep="\n")
        output.close()


def output_of(process: Any) -> str:
    """Return what a process of `worker` has printed until now."""
    return os.pread(process.stdout_file.fileno(), 1_000_000, 0).decode()  # moves no offset that the worker writes at


def wait_until(condition: Callable[[], object], seconds: float = 0.0, what: str = "") -> float:
    """Poll until the condition holds and return how long it took. There is nothing to be woken by across processes.

    Gives up after PATIENCE_SECONDS; after `seconds` where that is more. Uses a fifth of a processor at most.
    """
    began = asked = time.monotonic()
    patience = max(seconds, PATIENCE_SECONDS)
    while not condition():
        now = time.monotonic()
        if now - began > patience:
            raise AssertionError(f"not within {patience} s: {what or condition}")
        time.sleep(max(0.005, 4 * (now - asked)))
        asked = time.monotonic()
    return time.monotonic() - began


def lines(path: Path) -> list[list[str]]:
    """Return the words of each line of a file that a task writes to."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
