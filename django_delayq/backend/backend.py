"""The backend that `TASKS` names. Enqueues, reads results, and what people do to jobs; executes nothing.

Note [Before the apps are loaded]
`@task` makes the backend as soon as a module with a task is imported, and a project may do that before Django's apps
are loaded, where no model can be imported: in an app's `apps.py`, say. Django's own backends allow it, so do we. So
this module imports none, but for the stores when the first job is enqueued or looked for.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.core import checks

from .. import conf, registry, tracing
from ..compat import AnyResult, AnyTask, BaseTaskBackend, InvalidTask, TaskResultDoesNotExist
from ..exceptions import BrokerError, JobHeld, UnknownTask
from ..isolation import validate_isolation
from ..jobs import MAX_QUEUE, DelayQTask, as_called, as_result, note_running
from ..jobs.callbacks import NAMES as CALLBACKS
from ..jobs.callbacks import path_of
from ..jobs.options import parse
from ..jobs.task import retries_of, unique_key_of
from ..timing import to_ms
from .preparing import Preparer, absolute, moment
from .store import JobState, Outcome, SeenJob, Store


class DelayQBackend(BaseTaskBackend):
    """Django's tasks on the queue of `manage.py delayq_worker`.

    Guarantees: a job is executed at least once, not before its time, and one outcome of it is kept, as long as Redis
    keeps its data; with OPTIONS["durable"], as long as the database keeps its row, and not at all where the caller's
    transaction is rolled back. Does not guarantee: that a plain job survives a Redis that loses its data; that a job is
    executed only once.
    """

    task_class = DelayQTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Take the alias and its settings, as Django hands them over.

        Raises:
            InvalidTaskBackend: OPTIONS has an unknown key or a wrong value; says what to write.
        """
        super().__init__(alias, dict(params))
        self.settings = parse(alias, self.options)
        self.enqueue_on_commit = self.settings.enqueue_on_commit
        others = type(self).validate_task is not DelayQBackend.validate_task
        self._preparer = Preparer(alias, self.validate_task, durable=self.settings.durable, each_time=others)

    # -- Django's interface

    def validate_task(self, task: AnyTask) -> None:
        """Check a task when it is made, and again when it is enqueued.

        Raises:
            InvalidTask: Says what is wrong.
        """
        after: Any = task.run_after
        if isinstance(after, timedelta):  # Django's documentation allows it, its own check does not know it
            absolute(task)  # made with an instant, which checks the copy
            return
        super().validate_task(task)
        if task.queue_name not in conf.get_config().queues:
            raise InvalidTask(
                f"No worker serves the queue {task.queue_name!r}: DELAYQ['QUEUES'] has "
                f"{', '.join(conf.get_config().queues)}. Add it there, or take another queue_name."
            )
        if len(task.queue_name) > MAX_QUEUE:
            raise InvalidTask(
                f"The name of the queue {task.queue_name!r} is longer than {MAX_QUEUE} characters: the ids of results "
                "contain it, and Django keeps them below 64 characters. Take a shorter one."
            )
        retries_of(task)
        unique_key_of(task)
        validate_isolation(task)
        for name in CALLBACKS:
            path_of(name, getattr(task, name, None))

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:  # type: ignore[override]
        """Put one job into Redis and return its result, still to come.

        Raises:
            InvalidTask, InvalidArguments: The job can never be executed as it is.
            BrokerUnavailable: Redis does not answer; the job may have been added or not.
        """
        return self.enqueue_many([(task, args, kwargs)])[0]

    def enqueue_many(self, calls: Iterable[tuple[AnyTask, Iterable[Any], Mapping[str, Any]]]) -> list[AnyResult]:
        """Put one job for each (task, args, kwargs) into Redis, in few round trips; return their results in this order.

        Checks all before it sends the first. Where Redis fails on the way, some may have been added. Durable ones are
        inserted in the caller's transaction, all or none, and sent after it; no failure of Redis is raised for them.

        Raises:
            InvalidTask, InvalidArguments, BrokerUnavailable: See `enqueue`.
        """
        if not tracing.is_on():
            return self._enqueue(calls)
        with tracing.enqueueing() as tell:
            results = self._enqueue(calls)
            tell(results)
        return results

    def _enqueue(self, calls: Iterable[tuple[AnyTask, Iterable[Any], Mapping[str, Any]]]) -> list[AnyResult]:
        items = self._preparer.prepare(calls)
        self._stores[0].enqueue(items, type(self))
        return [result for result, _ in items]

    def get_result(self, result_id: str) -> AnyResult:
        """Return what stands of a job.

        Raises:
            TaskResultDoesNotExist: No job has this id, its result has expired, or its text is not of this project.
            BrokerUnavailable: Redis does not answer.
        """
        store, found = self._find(result_id)
        seen = store.for_result(found)
        try:
            call, state = seen.read()
            task = registry.get_task(call.task)
        except UnknownTask as error:
            raise TaskResultDoesNotExist(result_id) from error
        running = seen.state == JobState.RUNNING
        if running:
            note_running(state, seen.worker, seen.at_ms)
        return as_result(as_called(task, call, seen.shard.queue), result_id, call, state, running=running)

    def wait(self, result: AnyResult, timeout: float | timedelta | None = None) -> None:
        """Wait until a job has ended, and refresh its result: see `JobResult.wait`."""
        from .waiting import wait  # see Note [Before the apps are loaded]

        wait(result, timeout)

    async def await_(self, result: AnyResult, timeout: float | timedelta | None = None) -> None:
        """Do as `wait` does, without blocking the event loop."""
        from .waiting import await_

        await await_(result, timeout)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Report the queues of this alias that no worker serves, or whose names are too long."""
        served = conf.get_config().queues
        found: list[checks.CheckMessage] = []
        for queue in sorted(self.queues):
            text = f"TASKS[{self.alias!r}] has the queue {queue!r},"
            if queue not in served:
                hint = f"Add it to DELAYQ['QUEUES'] ({', '.join(served)}), or remove it here."
                found.append(checks.Error(f"{text} which no worker serves.", hint=hint, id="delayq.E021"))
            if len(queue) > MAX_QUEUE:
                text = f"{text} whose name is longer than {MAX_QUEUE} characters."
                hint = "The ids of results contain it, and Django keeps them below 64 characters. Take a shorter one."
                found.append(checks.Error(text, hint=hint, id="delayq.E022"))
        return found

    # -- more than Django's

    def cancel(self, result_id: str, *, running: bool = False, by: str = "") -> bool:
        """Cancel a job that waits; its result is then failed, with the error JobCancelled. False where it has ended.

        `running`: where a worker has it, ask for its execution to be stopped; `by` says who. Within about two seconds
        `TaskCancelled` is raised in the task, and it is dead then, whatever attempts it had left; see `Run.cancel`.

        Raises:
            JobHeld: A worker has it: it runs, or is about to. Not with `running`.
            TaskResultDoesNotExist: No job has this id.
            BrokerUnavailable: Redis does not answer.
        """
        try:
            return self._order(result_id, lambda store, seen: store.cancel(seen, self.result_ms))
        except JobHeld:
            if not running:
                raise
        from ..models.cancellation import Cancellation, job_key  # see Note [Before the apps are loaded]

        Cancellation.objects.ask(job_key(result_id), by)
        return True

    def reschedule(self, result_id: str, when: datetime | timedelta) -> bool:
        """Let a job that waits start at another time (a timedelta counts from now). False where it has ended.

        Raises:
            JobHeld, TaskResultDoesNotExist, BrokerUnavailable: See `cancel`.
        """
        at_ms = to_ms(moment(when))
        return self._order(result_id, lambda store, seen: store.move(seen, at_ms))

    @property
    def result_ms(self) -> int:
        """For how many ms a result is kept."""
        return max(1, int(self.settings.result_ttl * 1000))

    # -- inside

    @cached_property
    def _stores(self) -> tuple[Store, ...]:
        """Where jobs of this alias may stand, as they are asked: new ones go into the first."""
        from .in_database import DatabaseStore  # see Note [Before the apps are loaded]
        from .in_redis import RedisStore

        if self.settings.durable:
            return DatabaseStore(), RedisStore()
        redis = RedisStore(options=self.settings)
        return (redis, DatabaseStore()) if self.settings.results == "database" else (redis,)

    def _find(self, result_id: str) -> tuple[Store, SeenJob]:
        """Return the job of a result's id, and its store. One whose store does not answer may be known to the next."""
        away: BrokerError | None = None
        for store in self._stores:
            try:
                seen = store.find(result_id)
            except BrokerError as error:
                away = error
            else:
                if seen is not None and seen.alias == self.alias:
                    return store, seen
        raise away or TaskResultDoesNotExist(result_id)

    def _order(self, result_id: str, order: Callable[[Store, SeenJob], Outcome]) -> bool:
        """Give an order to a job that has not ended; say whether it was done."""
        store, seen = self._find(result_id)
        outcome = Outcome.GONE if seen.state in (JobState.DEAD, JobState.ENDED) else order(store, seen)
        if outcome == Outcome.HELD:
            raise JobHeld(f"A worker has the job {result_id} already, so that it can be neither cancelled nor moved.")
        return outcome == Outcome.DONE
