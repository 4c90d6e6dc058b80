"""Django's tasks framework, from Django 6.0 itself or from its backport on Django 5.2. Contains no behaviour."""

from typing import TYPE_CHECKING, Any, TypeAlias

import django
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus, task
else:  # Django 5.2
    try:
        from django_tasks import TaskResult, TaskResultStatus, task
        from django_tasks.base import Task, TaskContext
    except ModuleNotFoundError as error:
        if error.name != "django_tasks":
            raise
        raise ImproperlyConfigured(
            "Django 5.2 has no tasks framework of its own: install its backport, pip install 'django-delayq[backport]'."
        ) from None

if TYPE_CHECKING:
    AnyTask: TypeAlias = Task[..., Any]
else:
    AnyTask = Task

__all__ = ["AnyTask", "Task", "TaskContext", "TaskResult", "TaskResultStatus", "task"]
