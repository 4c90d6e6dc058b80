"""Backends of Django's tasks framework that do one thing each. Those of the framework itself are tested as they are."""

from typing import Any

import django
from django.utils.module_loading import import_string

from django_delayq.calls.compat import TaskResult, TaskResultStatus

FRAMEWORK = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
BaseTaskBackend = import_string(f"{FRAMEWORK}.backends.base.BaseTaskBackend")

#: (alias, task's path, args, kwargs, priority, queue) of everything that was accepted in this process.
ACCEPTED: list[tuple[Any, ...]] = []


class AcceptingBackend(BaseTaskBackend):
    """Takes everything and executes nothing."""

    supports_async_task = supports_priority = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Note it."""
        self.validate_task(task)
        ACCEPTED.append((self.alias, task.module_path, args, kwargs, task.priority, task.queue_name))
        return TaskResult(
            task=task, id=f"id-{len(ACCEPTED)}", status=TaskResultStatus.READY, enqueued_at=None, started_at=None,
            finished_at=None, last_attempted_at=None, args=list(args), kwargs=kwargs, backend=self.alias, errors=[],
            worker_ids=[],
        )  # fmt: skip


class PlainBackend(AcceptingBackend):
    """Can do no more than it must."""

    supports_async_task = supports_priority = False


class FlakyBackend(AcceptingBackend):
    """Is away the first OPTIONS["failures"] times, in this process."""

    failures = 0

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Fail as often as asked, then accept."""
        if FlakyBackend.failures < self.options["failures"]:
            FlakyBackend.failures += 1
            raise ConnectionError(f"the broker at redis://worker:swordfish@host is away, {kwargs}")
        return super().enqueue(task, args, kwargs)


class SlowBackend(AcceptingBackend):
    """Takes its time, in steps of Python."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Compute for so long, then accept."""
        import_string("tests.app.tasks.spin").call(self.options["seconds"])
        return super().enqueue(task, args, kwargs)


class StrangeBackend(AcceptingBackend):
    """Returns something that is no result."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Accept, and return nothing."""
        super().enqueue(task, args, kwargs)


class UnmakeableBackend(AcceptingBackend):
    """Cannot even be made: what it stands on is away."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        raise OSError("no route to redis://worker:swordfish@host")
