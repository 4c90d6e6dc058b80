"""Patches for a worker process whose settings are `tests.faults.patched.settings`, named by an environment variable."""

import hashlib
import os
from datetime import timedelta
from typing import Any

from django.apps import AppConfig

VARIABLE = "DELAYQ_TEST_PATCHES"


def patches(*texts: str) -> dict[str, str]:
    """Return the environment of a worker with these patches, each `name` or `name=argument`."""
    return {"DJANGO_SETTINGS_MODULE": "tests.faults.patched.settings", VARIABLE: ",".join(texts)}


class PatchedConfig(AppConfig):
    """Patches once all apps are loaded, before anything runs."""

    name = "tests.faults.patched"
    label = "patched"

    def ready(self) -> None:
        """Apply what the environment names."""
        for text in filter(None, os.environ.get(VARIABLE, "").split(",")):
            name, _, argument = text.partition("=")
            PATCHES[name](argument)


def _clock_off_by(seconds: str) -> None:
    """This process' own clock is off; the server's is what the test says."""
    from django_delayq import conf
    from tests.faults.simulated_time import shift_clocks, shift_key

    off = timedelta(seconds=float(seconds))
    shift_clocks(setattr, shift_key(conf.get_config().prefix), lambda: off)


def _another_release(version: str) -> None:
    """The scripts of another release: they do the same, their text and so their digest is another."""
    from django_delayq.index import scripts

    load = scripts.load

    def other(name: str) -> tuple[str, str]:
        text = f"-- release {version}\n{load(name)[0]}"
        return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    scripts.load = other  # type: ignore[assignment]


def _asks_who_lives(seconds: str) -> None:
    """The worker asks so often how many live, and what the time is."""
    from django_delayq.worker import timers

    timers.WORKERS_SECONDS = float(seconds)


def _lacks(path: str) -> None:
    """The code of this worker does not have a task yet, or not any more."""
    from django_delayq.calls import registry

    discover = registry._discover

    def lacking() -> tuple[dict[str, Any], list[registry.BrokenModule]]:
        tasks, broken = discover()
        return {name: task for name, task in tasks.items() if name != path}, broken

    registry._discover = lacking


def _first_release_ms(first: str) -> None:
    """What this worker does not know it hands back for so long at first, and for eight times as long at most."""
    from django_delayq.worker import dispatch

    dispatch.UNKNOWN_TASK_FIRST_MS, dispatch.UNKNOWN_TASK_MOST_MS = int(first), 8 * int(first)


def _small_pages(size: str) -> None:
    """Rows are read and written so many at a time."""
    from django_delayq.sync import pages

    pages.PAGE = int(size)


def _upkeep_ms(ms: str) -> None:
    """The upkeep lease lasts for so long, and is renewed in time."""
    from django_delayq.index import broker
    from django_delayq.worker import upkeep

    broker.UPKEEP_MS, upkeep.RENEW_SECONDS = int(ms), int(ms) / 3000


PATCHES = {
    "small_pages": _small_pages,
    "upkeep_ms": _upkeep_ms,
    "lacks": _lacks,
    "first_release_ms": _first_release_ms,
    "clock_off_by": _clock_off_by,
    "another_release": _another_release,
    "asks_who_lives": _asks_who_lives,
}
