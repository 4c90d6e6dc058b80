"""Isolated tasks, as the tests see them from outside: one point, its outcome, its processes."""

from pathlib import Path
from typing import Any

from django_delayq.models import Run, Schedule
from tests.acceptance.processes import alive, living
from tests.acceptance.support import wait_until

from .load import soon
from .workers import WorkerProcess

MODULE = "tests.faults.isolated_tasks"


def point(task: str, *args: Any, name: str = "s", **values: Any) -> Schedule:
    """A schedule with one point, in a moment."""
    return Schedule.objects.create(name=name, task=f"{MODULE}.{task}", args=list(args), **soon(1.0), **values)


def outcome(row: Schedule) -> Run:
    """Wait for the outcome of its only point."""
    ended = Run.objects.filter(schedule_id=row.pk, status__in=["succeeded", "failed", "lost"])
    wait_until(ended.exists, what="the outcome")
    return ended.get()


def said(run: Run) -> str:
    return run.outputs.get().text


def finished(result: Any) -> Any:
    wait_until(lambda: result.refresh() or result.is_finished, what="the job's end")
    return result


def pids_in(path: Path) -> list[int]:
    wait_until(path.exists, what="the task")
    return [int(word) for word in path.read_text().split()]


def gone(pids: list[int]) -> None:
    wait_until(lambda: not alive(pids), what=f"the end of {pids}")


def interpreters(worker: WorkerProcess) -> list[int]:
    """The guards below a worker, which are its children."""
    return [pid for pid, parent in living() if parent == worker.pid]
