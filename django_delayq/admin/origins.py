"""What belongs together: a due point that was handed over to a backend of ours, and the job that it became."""

from datetime import timedelta
from typing import Any

from ..backend import DelayQBackend
from ..compat import task_backends
from ..handover import REASON
from ..jobs import parse_id
from ..models import Run, Schedule

#: So many schedules that hand this task over are looked at, and so many runs of each, from the enqueueing backwards.
MOST_SCHEDULES, MOST_RUNS = 20, 25
#: The clocks of who claimed the point and of who enqueued the job may differ by this.
CLOCKS = timedelta(minutes=1)


def job_of(run: Run) -> str:
    """Return the id of the job that a run was handed over as; '' where it is none of ours."""
    given: Any = run.result if run.reason == REASON else None
    if not isinstance(given, dict) or parse_id(str(given.get("result_id"))) is None:
        return ""
    try:
        ours = isinstance(task_backends[str(given.get("backend"))], DelayQBackend)
    except Exception:  # no such alias here any more, or its settings are wrong
        return ""
    return str(given["result_id"]) if ours else ""


def run_of(job: Run) -> Run | None:
    """Return the run that handed a job over, None where none is found.

    No job says where it comes from. So runs are looked for of the schedules that hand this task over to this backend
    now, shortly before the job was enqueued: not one that came due long before.
    """
    schedules = Schedule.objects.filter(task=job.task, backend=job.backend).order_by()
    for pk in schedules.values_list("pk", flat=True)[:MOST_SCHEDULES]:
        runs = Run.objects.filter(schedule_id=pk, due_at__lte=job.created_at + CLOCKS).order_by("-due_at")
        for run in runs.defer("error", "attempts")[:MOST_RUNS]:
            if job_of(run) == job.result_id:
                return run
    return None
