"""Django's tasks framework, from Django 6.0 itself or from its backport on Django 5.2.

Note [The default backend decides the class of tasks]
The backport may be installed with Django 6: Wagtail requires it. The backend of an alias determines the class of its
tasks, whichever `@task` creates them. With a backend of the backport as the default, as in Wagtail's documentation, all
tasks have its class, including ours. Both classes have the same fields and methods.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import django
from django.core import mail
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus, task, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:  # Django 5.2
    try:
        from django_tasks import TaskResult, TaskResultStatus, task, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    except ModuleNotFoundError as error:
        if error.name != "django_tasks":
            raise
        raise ImproperlyConfigured(
            "Django 5.2 has no tasks framework of its own: install its backport, pip install 'django-delayq[backport]'."
        ) from None
    try:
        from django_tasks.exceptions import InvalidTask, InvalidTaskBackend
    except ImportError:  # their names up to 0.12
        from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
        from django_tasks.exceptions import InvalidTaskError as InvalidTask

if TYPE_CHECKING:
    AnyTask: TypeAlias = Task[..., Any]
    AnyResult: TypeAlias = TaskResult[..., Any]
else:
    AnyTask = Task
    AnyResult = TaskResult


def get_mail_connection() -> Any:
    mailers = getattr(mail, "mailers", None)  # from Django 6.1 on
    return mail.get_connection() if mailers is None else mailers.default


def is_task(value: object) -> "TypeGuard[AnyTask]":
    """Return whether this is a task. See Note [The default backend decides the class of tasks]."""
    backport = getattr(sys.modules.get("django_tasks.base"), "Task", Task)
    return issubclass(type(value), (Task, backport))  # isinstance() would evaluate a lazy object of a foreign module


__all__ = [
    "AnyResult", "AnyTask", "BaseTaskBackend", "InvalidTask", "InvalidTaskBackend", "Task", "TaskContext", "TaskError",
    "TaskResult", "TaskResultDoesNotExist", "TaskResultStatus", "get_mail_connection", "is_task", "normalize_json",
    "task", "task_backends", "task_enqueued", "task_finished", "task_started",
]  # fmt: skip
