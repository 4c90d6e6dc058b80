"""The backend that `TASKS` names: enqueues, reads results, cancels, moves and retries jobs. Executes nothing.

Note [Models are imported only on use]
`@task` may create the backend before models can be imported. So this module imports the stores only when it uses them.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core import checks

from .. import conf
from ..calls import registry, tracing
from ..calls.compat import AnyResult, AnyTask, BaseTaskBackend, InvalidTask, TaskResultDoesNotExist
from ..calls.results import build_result
from ..calls.task import DelayQTask, get_retries, get_unique_key
from ..calls.task_options import NAMES as CALLBACKS
from ..calls.task_options import Retries, get_path, parse
from ..exceptions import JobHeld, UnknownTask
from .preparing import Preparer, resolve_instant, resolve_run_after


class DelayQBackend(BaseTaskBackend):
    """Django's tasks on the queues of `manage.py delayq_worker`.

    A job is a row of the ledger, in the caller's transaction: a rollback discards it. A job is executed at least once,
    not before its time, and one outcome is recorded. It is not guaranteed to be executed only once.
    """

    task_class = DelayQTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Validate the alias' settings; raises InvalidTaskBackend if OPTIONS has an unknown key or a wrong value."""
        super().__init__(alias, dict(params))
        self.settings = parse(alias, self.options)
        overridden = type(self).validate_task is not DelayQBackend.validate_task
        #: By task path, for jobs without retry options of their own: see `calls/call.py`.
        self.known_retries: dict[str, Retries] = {}
        self._preparer = Preparer(alias, self.validate_task, each_time=overridden)

    def validate_task(self, task: AnyTask) -> None:
        """Check a task when it is created, and again when it is enqueued; raises InvalidTask."""
        after: Any = task.run_after
        if isinstance(after, timedelta):  # Django documents it, but its check does not support it
            resolve_run_after(task)  # creates a copy with an instant, which checks the copy
            return
        super().validate_task(task)
        if task.queue_name not in conf.get_config().queues:
            raise InvalidTask(
                f"No worker serves the queue {task.queue_name!r}: DELAYQ['QUEUES'] has "
                f"{', '.join(conf.get_config().queues)}. Add it there, or take another queue_name."
            )
        get_retries(task)
        get_unique_key(task)
        for name in CALLBACKS:
            get_path(name, getattr(task, name, None))

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:  # type: ignore[override]
        """Insert a job in the caller's transaction and return its pending result. Redis follows after the commit.

        If another job has the task's unique key, its result is returned. Raises InvalidTask, InvalidArguments or
        UnknownTask if the job can never be executed, DatabaseError if it was not inserted.
        """
        return self.enqueue_many([(task, args, kwargs)])[0]

    def enqueue_many(self, calls: Iterable[tuple[AnyTask, Iterable[Any], Mapping[str, Any]]]) -> list[AnyResult]:
        """Insert a job for each (task, args, kwargs), all or none; return results in sequence. Raises as `enqueue`."""
        if not tracing.is_on():
            return self._enqueue(calls)
        return tracing.trace_enqueueing(lambda: self._enqueue(calls))

    def _enqueue(self, calls: Iterable[tuple[AnyTask, Iterable[Any], Mapping[str, Any]]]) -> list[AnyResult]:
        from . import store  # see Note [Models are imported only on use]

        items: Any = self._preparer.prepare(calls)
        if items:
            store.enqueue(items, type(self))
        return [result for result, _ in items]

    def get_result(self, result_id: str) -> AnyResult:
        """Return the current result; raise TaskResultDoesNotExist if this alias has no such job, or it has expired."""
        from . import store

        row = store.find(result_id, self.alias)
        try:
            task = registry.get_task(row.task)
        except UnknownTask as error:
            raise TaskResultDoesNotExist(result_id) from error
        return build_result(task, row)

    def poll(self, result: AnyResult, timeout: float | timedelta | None) -> Iterator[float]:
        from .waiting import poll

        return poll(result, timeout)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        served = conf.get_config().queues
        hint = f"Add it to DELAYQ['QUEUES'] ({', '.join(served)}), or remove it here."
        return [
            checks.Error(
                f"TASKS[{self.alias!r}] has the queue {queue!r}, which no worker serves.", hint=hint, id="delayq.E005"
            )
            for queue in sorted(self.queues.difference(served))
        ]

    def cancel(self, result_id: str, *, running: bool = False, by: str = "") -> bool:
        """Cancel a waiting job: its result is failed, with the error JobCancelled. False if it has ended.

        With `running`, a job that a worker has is stopped, as by `Run.cancel`; `by` names the user. Otherwise raises
        JobHeld for such a job. Raises TaskResultDoesNotExist, and BrokerUnavailable if Redis does not answer.
        """
        from ..models import Run
        from . import store

        job = store.find(result_id, self.alias)
        try:
            return store.cancel(job, self.settings.result_ttl)
        except JobHeld:
            if not running:
                raise
        return Run.objects.filter(pk=job.pk).request_stop(by)

    def reschedule(self, result_id: str, when: datetime | timedelta) -> bool:
        """Move the start of a waiting job (a timedelta counts from now). False if it has ended. Raises as `cancel`."""
        from . import store

        return store.move(store.find(result_id, self.alias), resolve_instant(when))

    def retry(self, result_id: str) -> bool:
        """Enqueue a failed job again, with all its attempts. False if it has not failed.

        Raises KeyTaken if another job has its unique key, TaskResultDoesNotExist if no job has this id.
        """
        from . import store

        return store.retry(store.find(result_id, self.alias))
