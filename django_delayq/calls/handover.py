"""The TASKS backends, and whether one of them accepts a task. Enqueues nothing: `worker/calling.py` does.

Note [The task decides]
The schedule decides when a task is handed over, the task decides how: it keeps its `queue_name`, because
`Schedule.queue` is a queue of our workers, and its priority if the schedule's is 0.
"""

from collections.abc import Mapping

from django.core.exceptions import ImproperlyConfigured

from ..exceptions import DelayQError
from ..text import redact_text, suggest_name
from .compat import AnyTask, InvalidTask, task_backends

#: The reason of a run whose task another backend has accepted.
REASON = "handed_over"
LEAST_PRIORITY, MOST_PRIORITY = -100, 100


class HandoverRefused(DelayQError, ValueError):
    """A TASKS backend does not exist or does not accept a task. `field` is the model field at fault."""

    def __init__(self, message: str, *, field: str = "backend") -> None:
        super().__init__(message)
        self.field = field


class HandoverFailed(DelayQError):
    """A TASKS backend returned a result that has already failed; the message has its error."""


def list_backends() -> Mapping[str, str]:
    """Return the aliases of TASKS, each with the class name of its backend. Imports none of them."""
    settings = task_backends.settings
    return {alias: str(params.get("BACKEND", "")).rpartition(".")[2] for alias, params in settings.items()}


def prepare(task: AnyTask, backend: str, priority: int) -> AnyTask:
    """Return the task for this backend, see Note [The task decides]. Raises HandoverRefused, or the backend's error."""
    if backend not in task_backends.settings:
        hint = suggest_name(backend, list_backends())
        raise HandoverRefused(f"TASKS has no backend {backend!r}.{hint} It has {', '.join(list_backends())}.")
    try:
        return task.using(backend=backend, priority=priority or None)
    except ImproperlyConfigured as error:
        raise HandoverRefused(f"The TASKS backend {backend!r} cannot be used: {redact_text(str(error))}") from error
    except Exception as error:
        # The refusal of `validate_task`. Backends for the backport raise its exceptions, with any version of Django.
        if not isinstance(error, InvalidTask) and type(error).__name__ not in ("InvalidTask", "InvalidTaskError"):
            raise
        reason, field = _explain(task, backend, priority, str(error))
        message = f"The TASKS backend {backend!r} does not take {task.module_path}: {reason}"
        raise HandoverRefused(message, field=field) from error


def find_refusal(task: AnyTask, backend: str, priority: int) -> HandoverRefused | None:
    """Return why the backend would not accept the task, None if it would. Never raises."""
    try:
        prepare(task, backend, priority)
    except HandoverRefused as refusal:
        return refusal
    except Exception as error:  # third-party code
        text = redact_text(f"{type(error).__name__}: {error}")
        return HandoverRefused(f"The TASKS backend {backend!r} cannot be used: {text}")
    return None


def _explain(task: AnyTask, backend: str, priority: int, message: str) -> tuple[str, str]:
    """Return the backend's message with the way out, and the invalid field."""
    target, message = task_backends[backend], f"{message.rstrip('.')}."
    if not LEAST_PRIORITY <= (priority or task.priority) <= MOST_PRIORITY:
        return message, "priority"
    if priority and not target.supports_priority:
        return f"{message} Set the priority to 0.", "priority"
    if task.priority and not target.supports_priority:
        return f"{message} The task has @task(priority={task.priority}).", "backend"
    if target.queues and task.queue_name not in target.queues:
        queues = ", ".join(sorted(target.queues))
        return f"{message} TASKS[{backend!r}]['QUEUES'] has {queues}; the task's own is {task.queue_name}.", "backend"
    return message, "backend"
