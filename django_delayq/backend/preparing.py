"""Turns calls of tasks into validated rows and results. Writes nothing. Validates each task once."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import conf
from ..calls import registry, tracing
from ..calls.compat import AnyTask, InvalidTask, TaskResultStatus
from ..calls.results import JobResult, generate_tokens, hash_key, to_local
from ..calls.task import get_retries, get_unique_key
from ..calls.task_options import get_callbacks
from ..calls.validators import validate_call
from ..recurrence import from_ms, to_ms
from ..recurrence.point import utcnow

if TYPE_CHECKING:
    from ..ledger.rows import RunRow


TaskCall = tuple[AnyTask, Iterable[Any], Mapping[str, Any]]


class Prepared(NamedTuple):
    task: AnyTask
    path: str
    queue: str
    priority: int
    run_after: datetime | None
    unique_key: str | None
    options: dict[str, Any]


class Preparer:
    """Creates the jobs of one backend. Caches what it has computed for up to MOST tasks."""

    MOST = 256

    def __init__(self, alias: str, validate: Callable[[AnyTask], None], *, each_time: bool = False) -> None:
        """`validate` checks a task. `each_time`: call it for each enqueueing, because its result may change."""
        self.alias, self._each_time, self._validate = alias, each_time, validate
        self._known: dict[int, Prepared] = {}  # by id(task): tasks are immutable, and kept here
        self._config: conf.Config | None = None

    def prepare(self, calls: Iterable[TaskCall]) -> "list[tuple[JobResult, RunRow]]":
        """Return a pending result and a row for each call; raise InvalidTask, InvalidArguments or UnknownTask."""
        from ..ledger.rows import RunRow  # see `backend.py`, Note [Models are imported only on use]

        items, known, all_calls = [], dict[int, Prepared](), list(calls)
        now, carried = from_ms(to_ms(utcnow())), tracing.build_carrier()
        enqueued_at = to_local(now)
        for token, (task, args, kwargs) in zip(generate_tokens(len(all_calls)), all_calls, strict=True):
            one = known.get(id(task))
            if one is None:
                one = known[id(task)] = self._prepare_task(task)
            result = JobResult(
                task=one.task,
                id="",
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
            if args or kwargs:
                validate_call(result.args, result.kwargs)
            row = RunRow.build_job(
                one.path, one.queue, self.alias, max(one.run_after or now, now), token,
                priority=one.priority, created_at=now, unique_key=one.unique_key,
                call={"args": result.args, "kwargs": result.kwargs},
                options={**one.options, "trace": carried} if carried else one.options or None,
            )  # fmt: skip
            items.append((result, row))
        return items

    def _prepare_task(self, task: AnyTask) -> Prepared:
        config = conf.get_config()
        if config is not self._config:  # changed settings may invalidate tasks
            self._known, self._config = {}, config
        known = self._known.get(id(task))
        if known is None or self._each_time:
            self._validate(task)
        if known is not None:
            return known
        path, key = task.module_path, get_unique_key(task)
        registry.get_task(path)
        with_instant = resolve_run_after(task)
        run_after = None if with_instant.run_after is None else from_ms(to_ms(resolve_instant(with_instant.run_after)))
        retries = get_retries(task)._asdict()
        options: dict[str, Any] = {name: value for name, value in retries.items() if value is not None}
        options |= get_callbacks(task)
        unique_key = hash_key(path, key) if key else None
        if unique_key:
            options["unique_key"] = unique_key
            if getattr(task, "unique_until", None) == "end":
                options["unique_until"] = "end"
        fresh = Prepared(with_instant, path, str(task.queue_name), int(task.priority), run_after, unique_key, options)
        if run_after is None:  # otherwise it may count from now
            if len(self._known) >= self.MOST:
                self._known.clear()
            self._known[id(task)] = fresh
        return fresh


def resolve_run_after(task: AnyTask) -> AnyTask:
    """Return the task with an instant for a timedelta, which counts from now; raise InvalidTask if it is not valid."""
    after: Any = task.run_after
    if not isinstance(after, timedelta):
        return task
    try:
        return replace(task, run_after=datetime.now(UTC if conf.is_tz_on() else None) + after)
    except OverflowError:
        raise InvalidTask(f"run_after must be in the years 1 to 9999; {after!r} from now is not. Shorten it.") from None


def resolve_instant(when: datetime | timedelta) -> datetime:
    """Return an aware instant: a timedelta counts from now, a naive datetime is local."""
    return utcnow() + when if isinstance(when, timedelta) else when.astimezone(UTC)
