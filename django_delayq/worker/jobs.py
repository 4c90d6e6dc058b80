"""What is a job's alone, of what a worker does with an entry: Django's signals, its unique key, how long it is kept.

Note [The contract]
What Django documents of a backend: `task_started` is sent before the call, `task_finished` after the last attempt and,
where that failed, inside the exception's handler; a return value that is no JSON is a failure of the task. Receivers
of `task_finished` but Django's own are called once the outcome is recorded.
"""

from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from ..compat import AnyResult, AnyTask, TaskError, TaskResultStatus, task_finished, task_started
from ..context import EXECUTING
from ..history import from_json
from ..jobs import Call, as_called, new_result
from ..jobs.results import local
from ..models import Status
from ..models.run import OPEN
from ..side_channels import send

if TYPE_CHECKING:
    from .held import Held


def vars_of(call: Any) -> dict[str, Any]:
    """Return the arguments of a call, as a row keeps them."""
    return {"args": call.args, "kwargs": call.kwargs}


def begin_job(held: "Held", task: AnyTask) -> AnyResult:
    """Tell Django's receivers that an attempt begins; return its result as it stands."""
    result, call = running_job(held, task), held.outcome.call
    owner: Any = call.owner if isinstance(call, Call) else None
    send(task_started, "task_started", cut=BaseException, sender=type(owner), task_result=result)
    return result


def running_job(held: "Held", task: AnyTask) -> AnyResult:
    """Return the result of a job whose attempt has begun and has no outcome yet."""
    run = held.outcome.run
    result = new_result(as_called(task, run), run, vars_of(held.outcome.call), from_json(run.attempts), begun=True)
    object.__setattr__(result, "status", TaskResultStatus.RUNNING)
    return result


def end_job(held: "Held", result: AnyResult) -> None:
    """Have `task_finished` be sent once the end is recorded, in this context; at once where only Django receives it.

    Django's own receiver logs, and nothing more. An attempt that is followed by another one is no end.
    """
    run = held.outcome.run
    if run.status in OPEN:
        return
    failed = run.status != Status.SUCCEEDED
    object.__setattr__(result, "status", TaskResultStatus.FAILED if failed else TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", local(run.finished_at))
    object.__setattr__(result, "_return_value", run.result)
    if held.failure is not None:
        result.errors.append(TaskError(exception_class_path=held.failure.path, traceback=held.failure.text))
    error = held.outcome.error
    if len(task_finished.receivers) > 1:
        held.after = partial(copy_context().run, _send_finished, held, result, error)
        return
    token = EXECUTING.set(held)  # whose labels the line of Django's receiver has, whatever the thread
    try:
        _send_finished(held, result, error)
    finally:
        EXECUTING.reset(token)


def _send_finished(held: "Held", result: Any, error: BaseException | None) -> None:
    call = held.outcome.call
    values = {"sender": type(call.owner) if isinstance(call, Call) else None, "task_result": result}
    if error is None:
        send(task_finished, "task_finished", cut=BaseException, **values)
        return
    try:
        raise error  # Django's receiver logs the exception that is being handled
    except BaseException:
        send(task_finished, "task_finished", cut=BaseException, **values)


def close_job(held: "Held") -> None:
    """Fill in what the end of a job frees and how long it is kept. Does nothing for a schedule's run."""
    run, call = held.outcome.run, held.outcome.job
    if call is None or run.finished_at is None:
        return
    settings = call.owner.settings
    kept = settings.result_ttl if run.status == Status.SUCCEEDED else settings.failure_ttl
    run.unique_key, run.expires_at = None, run.finished_at + timedelta(seconds=kept)
