"""Tasks that log and print. Offered only where TASK_MODULES names this module, see test_f45."""

import asyncio
import logging
import time
from pathlib import Path

from django_delayq import isolated
from django_delayq.calls.compat import task

logger = logging.getLogger("shop")


def _begin(path: str, kind: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{kind}\n")
    print("printed", kind, flush=True)
    logger.warning("logged %s", kind)


@task
def in_a_thread(path: str, seconds: float = 0) -> str:
    """Say so, and take some time."""
    _begin(path, "thread")
    time.sleep(seconds)
    return "good"


@task
async def in_a_coroutine(path: str, seconds: float = 0) -> str:
    """Say so, and take some time."""
    _begin(path, "coroutine")
    await asyncio.sleep(seconds)
    return "good"


@isolated
@task
def in_a_process(path: str, seconds: float = 0) -> str:
    """Say so, and take some time."""
    _begin(path, "isolated")
    time.sleep(seconds)
    return "good"
