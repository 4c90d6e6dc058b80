"""Hands a due point over to another TASKS backend, in a slot's thread. Writes nothing of ours.

Note [Accepted]
A point is handed over when the backend's `enqueue` has returned: only then it is recorded as succeeded and settled.
What becomes of the task afterwards is that backend's to tell; for the schedule's overlap, `every_from = finish` and
`max_runs` the point has ended. A result that says at once that it has failed was not accepted: so Django's
ImmediateBackend, which executes within `enqueue`, fails here as the task does.

Between `enqueue` and the ledger lies what no order of the two can close: a process that dies there leaves a task in the
other queue and no outcome, and the point is handed over once more. The other way round it would be lost.
"""

from typing import Any

from .. import handover
from ..compat import AnyTask, TaskResultStatus
from ..exceptions import HandoverFailed
from ..registry import check_call
from ..rows import ScheduleRow


def hand_over(task: AnyTask, schedule: ScheduleRow) -> dict[str, Any]:
    """Enqueue the task where the schedule says; return alias and result id, to be stored. See Note [Accepted].

    Raises:
        HandoverRefused: The backend is unknown or does not take the task; nothing was enqueued.
        InvalidArguments: The arguments do not fit the task; nothing was enqueued.
        HandoverFailed: The result says that it has failed.
        Exception: What the backend raised; whether it has enqueued is not known.
    """
    check_call(task, schedule.args, schedule.kwargs)
    prepared = handover.prepare(task, schedule.backend, schedule.priority)
    result: Any = prepared.enqueue(*schedule.args, **schedule.kwargs)
    if getattr(result, "status", None) == TaskResultStatus.FAILED:
        raise _failure(schedule.backend, result)
    result_id = getattr(result, "id", None)  # whatever a backend returns, it has accepted
    return {"backend": schedule.backend, "result_id": None if result_id is None else str(result_id)}


def _failure(backend: str, result: Any) -> HandoverFailed:
    errors = getattr(result, "errors", None)
    trace = str(errors[-1].traceback).strip() if errors else ""
    last = trace.rpartition("\n")[2] or "it tells no error"
    failure = HandoverFailed(f"The TASKS backend {backend!r} returned a failed result: {last}")
    failure.add_note(trace)
    return failure
