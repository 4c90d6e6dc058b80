"""From calls of tasks to jobs: checked, named, signed. Sends nothing.

What follows from the task alone is worked out once for all calls of one task.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from .. import conf, registry
from ..broker import NewJob
from ..compat import AnyResult, AnyTask, InvalidTask, TaskResultStatus
from ..fields import utcnow
from ..jobs import Call, CallLine, encode, key_hash, new_members, result_id
from ..jobs.ids import with_head
from ..jobs.results import JobResult, instant
from ..jobs.task import retries_of, unique_key_of
from ..timing import to_ms

TaskCall = tuple[AnyTask, Iterable[Any], Mapping[str, Any]]


class Prepared:
    """One task, ready to be enqueued any number of times."""

    def __init__(self, task: AnyTask, alias: str, *, durable: bool = False) -> None:
        """Take a task that is valid.

        Raises:
            InvalidTask: An option of ours is wrong.
            UnknownTask: No installed app offers it, so that no worker could find it.
        """
        self.given = task
        self.task = absolute(task)
        self.priority = int(task.priority)
        self.queue: str = task.queue_name
        path = task.module_path
        registry.get_task(path)
        key = unique_key_of(task)
        self.unique = key_hash(path, key) if key else ""
        run_after = self.task.run_after
        self.run_after = None if run_after is None else to_ms(moment(run_after))
        self.line = CallLine(
            Call(
                path, [], {}, alias, 0, self.priority, self.run_after, self.unique, *retries_of(task),
                durable,
            )
        )  # fmt: skip


class Preparer:
    """What a backend has worked out of the tasks that it enqueued last, so that it need not do so for each call."""

    MOST = 256

    def __init__(
        self, alias: str, validate: Callable[[AnyTask], None], *, durable: bool, each_time: bool = False
    ) -> None:
        """Take what checks a task; `each_time` where its answer may change without the settings."""
        self.alias, self.durable, self._each_time = alias, durable, each_time
        self._validate = validate
        self._known: dict[int, Prepared] = {}  # by the identity of a task, which is kept with it, and never changes
        self._config: conf.Config | None = None

    def prepared(self, task: AnyTask) -> "Prepared":
        """Check a task, and return it ready to be enqueued.

        Raises:
            InvalidTask, UnknownTask: It can never be executed as it is.
        """
        config = conf.get_config()
        if config is not self._config:  # other settings: what was valid need not be any more
            self._known, self._config = {}, config
        known = self._known.get(id(task))
        if known is not None and known.given is not task:
            known = None
        if known is None or self._each_time:
            self._validate(task)
        if known is not None:
            return known
        fresh = Prepared(task, self.alias, durable=self.durable)
        if fresh.run_after is None:  # else it may count from now
            if len(self._known) >= self.MOST:
                self._known.clear()
            self._known[id(task)] = fresh
        return fresh


def prepare(calls: Iterable[TaskCall], preparer: Preparer) -> tuple[list[AnyResult], list[tuple[str, NewJob]]]:
    """Return a result, still to come, and a (queue, job) for each call.

    Raises:
        InvalidTask, InvalidArguments, UnknownTask: One of the calls can never be executed as it is.
    """
    results: list[AnyResult] = []
    jobs: list[tuple[str, NewJob]] = []
    known: dict[int, Prepared] = {}
    alias = preparer.alias
    now_ms = int(time.time() * 1000)
    enqueued_at = instant(now_ms)
    all_calls = list(calls)
    for member, (task, args, kwargs) in zip(new_members(len(all_calls)), all_calls, strict=True):
        prepared = known.get(id(task))
        if prepared is None:
            prepared = known[id(task)] = preparer.prepared(task)
        unique = prepared.unique
        name = with_head(member, unique) if unique else member
        result: AnyResult = JobResult(
            task=prepared.task,
            id=result_id(prepared.queue, name),
            status=TaskResultStatus.READY,
            enqueued_at=enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,  # type: ignore[arg-type]
            kwargs=kwargs,  # type: ignore[arg-type]
            backend=alias,
            errors=[],
            worker_ids=[],
        )
        payload = encode(prepared.queue, name, prepared.line.encode(result.args, result.kwargs, now_ms))
        results.append(result)
        job = NewJob(name, prepared.run_after or 0, prepared.priority, unique, payload)
        jobs.append((prepared.queue, job))
    return results, jobs


def absolute(task: AnyTask) -> AnyTask:
    """Return the task with an instant where it has a timedelta, which counts from now.

    Raises:
        InvalidTask: There is no such instant; or the task is not valid.
    """
    after: Any = task.run_after
    if not isinstance(after, timedelta):
        return task
    try:
        moment_after = datetime.now(UTC if conf.use_tz() else None) + after
    except OverflowError:
        raise InvalidTask(f"run_after must end in the years 1 to 9999, which now and {after!r} do not.") from None
    return replace(task, run_after=moment_after)


def moment(when: datetime | timedelta) -> datetime:
    """Return an aware instant; a timedelta counts from now, a naive datetime is local."""
    return utcnow() + when if isinstance(when, timedelta) else when.astimezone(UTC)
