"""Which TASKS backends there are, and whether one of them takes a task. Enqueues nothing: `worker/calling.py` does.

Note [As the task says]
A schedule that is handed over decides when, not how: the task keeps its own `queue_name`, because `Schedule.queue`
names a queue of our workers, and its own priority where the schedule's is 0. What the backend cannot do (that queue, a
priority, a coroutine) Django's own `validate_task` refuses, so that the same rules hold as for `task.enqueue()`.
"""

from collections.abc import Mapping

from django.core.exceptions import ImproperlyConfigured

from ..exceptions import DelayQError
from ..text import did_you_mean, redact_text
from .compat import AnyTask, InvalidTask, task_backends

#: The reason of a run whose task another backend has accepted.
REASON = "handed_over"
LEAST_PRIORITY, MOST_PRIORITY = -100, 100


class HandoverRefused(DelayQError, ValueError):
    """The TASKS backend that a schedule names does not exist, or does not take the task like this.

    Trying again cannot help. `field` is the model field to blame: `backend` or `priority`.
    """

    def __init__(self, message: str, *, field: str = "backend") -> None:
        super().__init__(message)
        self.field = field


class HandoverFailed(DelayQError):
    """A TASKS backend answered at once that the task has failed, or could not be started. The message has its error."""


def backends() -> Mapping[str, str]:
    """Return the aliases of TASKS, each with the name of its backend's class. Imports none of them."""
    settings = task_backends.settings
    return {alias: str(params.get("BACKEND", "")).rpartition(".")[2] for alias, params in settings.items()}


def prepare(task: AnyTask, backend: str, priority: int) -> AnyTask:
    """Return the task as this backend takes it; a priority of 0 is the task's own. See Note [As the task says].

    Raises:
        HandoverRefused: There is no such backend, or it does not take the task like this; the message says why.
        Exception: What the backend raises while it is made.
    """
    if backend not in task_backends.settings:
        hint = did_you_mean(backend, backends())
        raise HandoverRefused(f"TASKS has no backend {backend!r}.{hint} It has {', '.join(backends())}.")
    try:
        return task.using(backend=backend, priority=priority or None)
    except ImproperlyConfigured as error:
        raise HandoverRefused(f"The TASKS backend {backend!r} cannot be used: {redact_text(str(error))}") from error
    except Exception as error:
        # how `validate_task` refuses; a backend made for the backport does so in its words, whatever Django this is
        if not isinstance(error, InvalidTask) and type(error).__name__ not in ("InvalidTask", "InvalidTaskError"):
            raise
        reason, field = _explain(task, backend, priority, str(error))
        message = f"The TASKS backend {backend!r} does not take {task.module_path}: {reason}"
        raise HandoverRefused(message, field=field) from error


def find_refusal(task: AnyTask, backend: str, priority: int) -> HandoverRefused | None:
    """Return why the backend would not take the task, None where it would. Never raises."""
    try:
        prepare(task, backend, priority)
    except HandoverRefused as refusal:
        return refusal
    except Exception as error:  # somebody else's code
        text = redact_text(f"{type(error).__name__}: {error}")
        return HandoverRefused(f"The TASKS backend {backend!r} cannot be used: {text}")
    return None


def _explain(task: AnyTask, backend: str, priority: int, said: str) -> tuple[str, str]:
    """Return what the backend said with the way out, and the field to blame."""
    target = task_backends[backend]
    said = said.rstrip(".")
    if not LEAST_PRIORITY <= (priority or task.priority) <= MOST_PRIORITY:
        return f"{said}.", "priority"
    if not target.supports_priority and (priority or task.priority):
        if priority:
            return f"{said}. Set the priority to 0.", "priority"
        return f"{said}, and the task has @task(priority={task.priority}).", "backend"
    if target.queues and task.queue_name not in target.queues:
        queues = ", ".join(sorted(target.queues))
        return f"{said}. TASKS[{backend!r}]['QUEUES'] has {queues}; the task's own is {task.queue_name}.", "backend"
    return f"{said}.", "backend"
