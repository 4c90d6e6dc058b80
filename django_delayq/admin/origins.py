"""What belongs together: a due point that was handed over to a backend of ours, and the job that it became."""

from typing import Any

from ..backend import DelayQBackend
from ..compat import task_backends
from ..handover import REASON
from ..jobs import parse_id
from ..models import Run


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
