"""Backends that go wrong on purpose."""

import os
import signal
from pathlib import Path
from typing import Any

from django_tasks_db import DatabaseBackend


class DeadlyBackend(DatabaseBackend):
    """Stores a row as the other one does; the first time, the process is killed before anybody hears of it."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        killed = Path(os.environ["DELAYQ_TEST_KILLED"])
        if not killed.exists():
            killed.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return result
