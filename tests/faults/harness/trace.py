"""What the tasks themselves wrote: every execution, finished or not. See tests/faults/tasks.py."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Execution:
    """One execution of one attempt at one due point. In seconds of the wall clock; `ended` None = not yet, or never."""

    schedule: int
    due_ms: int
    attempt: int
    pid: int
    began: float
    ended: float | None = None

    @property
    def point(self) -> tuple[int, int]:
        """The due point: schedule and ms."""
        return self.schedule, self.due_ms


class Trace:
    """A file that all tasks of a test append to. Read on from where it was read before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._found: list[Execution] = []
        self._running: dict[tuple[bytes, ...], Execution] = {}

    def executions(self) -> list[Execution]:
        """Return all executions in the order of their starts."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                self._add(*line.split())
        return self._found

    def _add(self, what: bytes, *words: bytes) -> None:
        *key, moment = words
        if what == b"end":
            self._running.pop(tuple(key)).ended = float(moment)
            return
        schedule, due_ms, attempt, pid, _thread = map(int, key)
        execution = Execution(schedule, due_ms, attempt, pid, float(moment))
        self._running[tuple(key)] = execution
        self._found.append(execution)

    def over(self, executions: Iterable[Execution]) -> bool:
        """Say whether all of these have ended by now."""
        self.executions()
        return all(item.ended is not None for item in executions)

    def per_point(self) -> Counter[tuple[int, int, int]]:
        """Count the executions of each (schedule, due ms, attempt): 1 where nothing was repeated."""
        return Counter((item.schedule, item.due_ms, item.attempt) for item in self.executions())

    def running_in(self, pid: int) -> list[Execution]:
        """Return what began in a process and did not end."""
        self.executions()
        return [item for item in self._running.values() if item.pid == pid]

    def taken_over(self, pid: int, died: float) -> float | None:
        """Return the seconds from a process' death until the last point that it had begun was begun elsewhere.

        None where it had begun nothing; infinite where a point was not begun again (yet).
        """
        everything = self.executions()
        delays = []
        for victim in (item for item in everything if item.pid == pid and item.ended is None and item.began <= died):
            later = (item for item in everything if item.point == victim.point and item.pid != pid)
            delays.append(min((item.began - died for item in later if item.began > died), default=float("inf")))
        return max(delays, default=None)

    def first_after(self, moment: float, but_not_in: int = 0) -> dict[int, float]:
        """Return, by schedule, how many seconds after `moment` an execution began in another process."""
        found: dict[int, float] = {}
        for item in self.executions():
            if item.began > moment and item.pid != but_not_in:
                found.setdefault(item.schedule, item.began - moment)
        return found
