"""Named places at which the fault suite ends, stops or delays a process. Only where DELAYQ_FAILPOINTS is set.

`DELAYQ_FAILPOINTS="after_ledger=kill@3,after_settle=sleep:2"`: the third time this process passes `after_ledger` it is
killed; the first time it passes `after_settle` it sleeps for 2 s. Actions: `kill` (SIGKILL), `stop` (SIGSTOP, until
somebody sends SIGCONT), `exit` (`os._exit(1)`), `sleep:<seconds>`, `raise` (a RuntimeError). The settings of the tests
call `install`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

from django_delayq import failpoints

VARIABLE = "DELAYQ_FAILPOINTS"
#: Where the package does nothing.
_pass_by = failpoints.reach
#: Every place that calls `failpoints.reach`.
NAMES = frozenset(
    (
        "before_claim",  # the worker is about to ask for due members
        "after_claim",  # the reply is there, nothing was judged
        "after_judge",  # definitions and rows are loaded, nothing was started
        "before_ledger",  # outcomes are there, nothing was written
        "after_ledger",  # the ledger's transaction is committed, Redis was not settled
        "after_settle",  # Redis has the next points
        "before_mirror",  # a web process has committed an edit, Redis does not know yet
        "during_pruning",  # rows are deleted, their horizon is not noted, nothing is committed
        "after_pruning",  # the transaction of a batch of pruned rows is committed, nothing was told
        "before_alert",  # a state is changed and its jobs are written, nothing is committed
        "after_alert",  # that is committed, nothing was sent
        "during_rebuild",  # a page of a rebuild or full sweep is written
    )
)


class _Failpoint:
    def __init__(self, text: str) -> None:
        name, _, rest = text.strip().partition("=")
        action, _, nth = rest.partition("@")
        self.action, _, value = action.partition(":")
        if name not in NAMES or self.action not in ("kill", "stop", "exit", "sleep", "raise"):
            raise ValueError(f"{VARIABLE} has {text!r}; known names: {', '.join(sorted(NAMES))}.")
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
    if not points:
        return _pass_by

    def reach(name: str) -> None:
        for point in points:
            if point.name == name:
                point.reach()

    return reach


def install() -> None:
    """Do in this process what its environment asks for."""
    failpoints.reach = prepare(os.environ.get(VARIABLE, ""))
