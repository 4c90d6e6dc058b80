"""From calls of tasks to jobs: checked, named, signed. Sends nothing.

What follows from the task alone is worked out once for all calls of one task.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from .. import conf, registry, tracing
from ..broker import NewJob
from ..compat import AnyTask, InvalidTask, TaskResultStatus
from ..fields import utcnow
from ..jobs import Call, CallLine, callbacks_of, encode, key_hash, new_members, result_id, with_trace
from ..jobs.ids import with_head
from ..jobs.results import JobResult, instant
from ..jobs.task import retries_of, unique_key_of
from ..timing import to_ms
from .store import Enqueued

TaskCall = tuple[AnyTask, Iterable[Any], Mapping[str, Any]]


#: A task that is ready to be enqueued any number of times.
Prepared = tuple[AnyTask, CallLine]


class Preparer:
    """Makes jobs for one backend. What it has worked out of the tasks that came last it need not do for each call."""

    MOST = 256

    def __init__(
        self, alias: str, validate: Callable[[AnyTask], None], *, durable: bool, each_time: bool = False
    ) -> None:
        """Take what checks a task; `each_time` where its answer may change without the settings."""
        self.alias, self.durable, self._each_time = alias, durable, each_time
        self._validate = validate
        self._known: dict[int, Prepared] = {}  # by the identity of a task, which is kept with it, and never changes
        self._config: conf.Config | None = None

    def prepare(self, calls: Iterable[TaskCall]) -> list[Enqueued]:
        """Return a result, still to come, and a (queue, job) for each call.

        Raises:
            InvalidTask, InvalidArguments, UnknownTask: One of the calls can never be executed as it is.
        """
        items: list[Enqueued] = []
        known: dict[int, Prepared] = {}
        now_ms, carried = int(time.time() * 1000), tracing.carrier()
        enqueued_at = instant(now_ms)
        all_calls = list(calls)
        for member, (task, args, kwargs) in zip(new_members(len(all_calls)), all_calls, strict=True):
            if id(task) not in known:
                known[id(task)] = self._prepared(task)
            with_instant, line = known[id(task)]
            call, queue = line.call, str(task.queue_name)
            name = with_head(member, call.unique) if call.unique else member
            result = JobResult(
                task=with_instant,
                id=result_id(queue, name),
                status=TaskResultStatus.READY,
                enqueued_at=enqueued_at,
                started_at=None,
                finished_at=None,
                last_attempted_at=None,
                args=args,  # type: ignore[arg-type]
                kwargs=kwargs,  # type: ignore[arg-type]
                backend=self.alias,
                errors=[],
                worker_ids=[],
            )
            text = with_trace(line.encode(result.args, result.kwargs, now_ms), carried)
            payload = encode(queue, name, text)
            items.append((result, (queue, NewJob(name, call.run_after or 0, call.priority, call.unique, payload))))
        return items

    def _prepared(self, task: AnyTask) -> Prepared:
        config = conf.get_config()
        if config is not self._config:  # other settings: what was valid need not be any more
            self._known, self._config = {}, config
        known = self._known.get(id(task))
        if known is None or self._each_time:
            self._validate(task)
        if known is not None:
            return known
        path, key = task.module_path, unique_key_of(task)
        registry.get_task(path)
        with_instant = absolute(task)
        at_ms = None if with_instant.run_after is None else to_ms(moment(with_instant.run_after))
        unique = key_hash(path, key) if key else ""
        call = Call(
            path, [], {}, self.alias, 0, int(task.priority), at_ms, unique, *retries_of(task), self.durable,
            *callbacks_of(task),
        )  # fmt: skip
        fresh = with_instant, CallLine(call)
        if at_ms is None:  # else it may count from now
            if len(self._known) >= self.MOST:
                self._known.clear()
            self._known[id(task)] = fresh
        return fresh


def absolute(task: AnyTask) -> AnyTask:
    """Return the task with an instant where it has a timedelta, which counts from now.

    Raises:
        InvalidTask: There is no such instant; or the task is not valid.
    """
    after: Any = task.run_after
    if not isinstance(after, timedelta):
        return task
    try:
        return replace(task, run_after=datetime.now(UTC if conf.use_tz() else None) + after)
    except OverflowError:
        raise InvalidTask(f"run_after must end in the years 1 to 9999, which now and {after!r} do not.") from None


def moment(when: datetime | timedelta) -> datetime:
    """Return an aware instant; a timedelta counts from now, a naive datetime is local."""
    return utcnow() + when if isinstance(when, timedelta) else when.astimezone(UTC)
