"""Named places at which the fault suite ends, stops or delays a process. Only where DELAYQ_FAILPOINTS is set.

`DELAYQ_FAILPOINTS="after_ledger=kill@3,after_settle=sleep:2"`: the third time this process passes `after_ledger` it is
killed; the first time it passes `after_settle` it sleeps for 2 s. Actions: `kill` (SIGKILL), `stop` (SIGSTOP, until
somebody sends SIGCONT), `exit` (`os._exit(1)`), `sleep:<seconds>`, `raise` (a RuntimeError).

The places are around functions of the package, which knows nothing of them: the tests' app calls `install`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

VARIABLE = "DELAYQ_FAILPOINTS"
#: Each place: whether it is before or after these functions of the package.
PLACES = {
    "before_claim": ("before", "worker.dispatch:Claims.claim"),  # the worker is about to ask for due members
    "after_claim": ("after", "worker.trip:Trip.claim"),  # the reply is there, nothing was judged
    "after_judge": ("after", "worker.trip:judge"),  # definitions and rows are loaded, nothing was started
    "before_ledger": ("before", "ledger:record"),  # outcomes are there, nothing was written
    "after_ledger": ("after", "ledger:record"),  # the transaction is committed, Redis was not settled
    "after_settle": ("after", "index.broker:Broker.settle"),  # Redis has the next points
    "before_mirror": ("before", "sync.after_commit:_attempt"),  # a web process has committed, Redis does not know yet
    "during_pruning": ("after", "ledger.retention:delete_with_outputs"),  # their horizon is not noted
    "after_pruning": ("after", "ledger:prune"),  # the transaction of a batch is committed, nothing was told
    "before_alert": (
        "after",
        "monitoring.alerts.states:_write_change",
    ),  # with the jobs of its messages, and not committed
    "after_alert": ("after", "monitoring.alerts.states:_announce_change"),  # that is committed, nothing was sent
    "during_rebuild": ("after", "sync.sweep:compare", "sync.rebuild:_restore"),  # a page is written
}


def reach(name: str) -> None:
    """Pass a place: do what the environment asks for there. Tests put another function in its place."""
    _prepared(os.environ.get(VARIABLE, ""))(name)


def around(real: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
    """Return a function with a place before it, and one after it; '' for none."""

    @wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before:
            reach(before)
        result = real(*args, **kwargs)
        if after:
            reach(after)
        return result

    return call


def _wrap(function: str, name: str, when: str) -> None:
    module, _, path = function.partition(":")
    owner: Any = import_module(f"django_delayq.{module}")
    *outer, attribute = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    places = (name, "") if when == "before" else ("", name)
    setattr(owner, attribute, around(getattr(owner, attribute), *places))


class _Failpoint:
    def __init__(self, text: str) -> None:
        name, _, rest = text.strip().partition("=")
        action, _, nth = rest.partition("@")
        self.action, _, value = action.partition(":")
        if name not in PLACES or self.action not in ("kill", "stop", "exit", "sleep", "raise"):
            raise ValueError(f"{VARIABLE} has {text!r}; known names: {', '.join(sorted(PLACES))}.")
        self.name, self.nth, self.seconds = name, int(nth or 1), float(value or 0)
        self.passed = 0
        self._lock = threading.Lock()

    def reach(self) -> None:
        with self._lock:
            self.passed += 1
            if self.passed != self.nth:
                return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.action == "exit":
            os._exit(1)
        elif self.action == "sleep":
            time.sleep(self.seconds)
        else:
            raise RuntimeError(f"failpoint {self.name}")


def prepare(text: str) -> Callable[[str], None]:
    """Return the function to call at each place.

    Raises:
        ValueError: An unknown name or action.
    """
    points = [_Failpoint(item) for item in text.split(",") if item.strip()]

    def act(name: str) -> None:
        for point in points:
            if point.name == name:
                point.reach()

    return act


_prepared = cache(prepare)


def install() -> None:
    """Make the places. Called once in a process, or before it forks others."""
    for name, (when, *functions) in PLACES.items():
        for function in functions:
            _wrap(function, name, when)
