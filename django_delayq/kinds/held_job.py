"""A claimed job on its way through the worker: calls its task and says what becomes of it. Writes nothing anywhere.

Note [The contract]
What Django documents of a backend: `task_started` is sent before the call, `task_finished` after the last attempt and,
where that failed, inside the exception's handler; a return value that is no JSON is a failure of the task. Receivers
of `task_finished` but Django's own are called once the outcome is recorded.
"""

import logging
import time
from collections.abc import Hashable
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from ..broker import JobEntry, JobSettlement, callback_text, held_by
from ..compat import AnyTask, TaskError, TaskResultStatus, task_finished, task_started
from ..context import EXECUTING
from ..exceptions import ResultTooLarge, TaskCancelled, TaskTimeout
from ..jobs import (
    Call,
    Callback,
    JobContext,
    Retries,
    State,
    after_job,
    as_result,
    encode,
    note_failed,
    note_lost,
    result_id,
    trace_of,
)
from ..jobs.results import instant
from ..jobs.task import as_enqueued
from ..ledger import JobRow
from ..models import JobStatus
from ..models.cancellation import job_key
from ..side_channels import send
from .base import Held
from .execution import Told, backoff_ms, hung, log_ended, output_of, perform_task, take, tell
from .timeouts import Timeouts

#: Until a job's text is read.
BLANK, DEFAULT = State(), Retries()


@dataclass(slots=True, eq=False, kw_only=True)
class HeldJob(Held):
    """A job of Redis alone, or one that stands in the database too."""

    entry: JobEntry
    stored: bool = False
    #: The call as it stands in Redis, and what has become of it; there once the text has been read.
    line: str = ""
    call: Call | None = None
    state: State = BLANK
    retries: Retries = DEFAULT
    #: The backend of its alias, which sends its signals.
    backend: Any = None
    #: True once a take-over of it was counted.
    begun: bool = False
    #: What was read in the database of a durable one, and what stood there before its take-over was written.
    row: JobRow | None = None
    before: JobRow | None = None
    #: What this attempt has said, where a row keeps that.
    said: str = ""
    #: What becomes of it in Redis, and what follows its end.
    settlement: JobSettlement | None = None
    callback: Callback | None = None

    @property
    def former(self) -> tuple[str, int | None]:
        """Who began to execute it before, without an end, and the ms of that claim; ('', None) where not known."""
        if self.before is not None and self.before.status == JobStatus.RUNNING:
            return held_by(self.before.fence)
        return held_by(self.entry.former)

    @property
    def read(self) -> Call:
        """Its call, which is there once its text has been read."""
        assert self.call is not None  # noqa: S101
        return self.call

    @property
    def title(self) -> str:
        """What people call it."""
        return f"job {self.result_id}"

    @property
    def sort(self) -> Hashable:
        """See `Held.sort`."""
        return self.kind, self.settled.what, self.row is None, bool(self.said), self.callback is None

    @property
    def labels(self) -> dict[str, str | int]:
        """See `Held.labels`."""
        attempt = len(self.state.workers)
        return {"task": self.read.task, "queue": self.shard.queue, "job": self.result_id, "attempt": attempt}

    @property
    def waited(self) -> tuple[datetime | None, float | None]:
        """See `Held.waited`."""
        return instant(self.read.run_after or self.read.enqueued), self.lag

    @property
    def lag(self) -> float | None:
        """For how many seconds it waited for its first attempt; None where that is not the last one."""
        if self.state.attempted is None or len(self.state.workers) != 1 or self.state.earlier:
            return None
        return max(0, self.state.attempted - (self.read.run_after or self.read.enqueued)) / 1000

    def carried(self) -> tuple[dict[str, str], bool]:
        """See `Held.carried`."""
        return trace_of(self.line), True

    @property
    def stop_key(self) -> str:
        """See `Held.stop_key`."""
        return job_key(self.result_id)

    @property
    def result_id(self) -> str:
        """The id of its result."""
        return result_id(self.shard.queue, self.member)

    def settle(self, what: str, ms: int = 0, text: str = "") -> "HeldJob":
        """Have it be settled so: see job_settle.lua."""
        after = self.callback if what in ("done", "dead") else None
        callback = "" if after is None else callback_text(after.member, after.call.priority, after.payload)
        self.settlement = JobSettlement(self.member, self.lease, what, ms, text, callback)
        return self

    @property
    def settled(self) -> JobSettlement:
        """What becomes of it in Redis, once that is known."""
        assert self.settlement is not None  # noqa: S101
        return self.settlement

    def drop(self) -> "HeldJob":
        """Have it be forgotten: it is not to be executed."""
        return self.settle("done")

    def release(self, delay_ms: int) -> "HeldJob":
        """Have it be handed back unstarted."""
        return self.settle("release", delay_ms, "begun" if self.begun else "lapsed" if self.entry.lapsed else "")


logger = logging.getLogger("django_delayq.worker")


def task_of(task: AnyTask, held: HeldJob) -> AnyTask:
    """Return the task as it was enqueued."""
    call = held.read
    wanted = (call.backend, held.shard.queue, call.priority, instant(call.run_after))
    if wanted == (task.backend, task.queue_name, task.priority, task.run_after):
        return task
    backend, queue, priority, run_after = wanted
    return as_enqueued(task, backend=backend, queue_name=queue, priority=priority, run_after=run_after)


class JobCalls:
    """What a slot does with a job, for `Jobs`. What becomes of the job stands in its settlement."""

    timeouts: Timeouts
    worker: str

    def execute(self, held: HeldJob) -> bool:
        """See `Kind.execute`."""
        if held.begun:
            _note_lost(held)
        state = held.state
        state.attempted = int(time.time() * 1000)
        state.started = state.started or state.attempted
        state.workers.append(self.worker)
        task = held.task
        assert task is not None  # noqa: S101 - it was read
        result = as_result(task, held.result_id, held.read, state, running=True)
        send(task_started, "task_started", cut=BaseException, sender=type(held.backend), task_result=result)
        context = []
        if task.takes_context:
            context = [JobContext(task_result=result, idempotency_key=held.result_id, _lease_lost=held.is_lost)]
        ended = perform_task(held, task, self.timeouts, *context, *result.args, **result.kwargs)
        if ended is None:
            return False
        held.said = output_of(held, held.read)
        value, error = ended.value, ended.error
        if error is None:
            value, error = take(value)
            if error is not None and issubclass(type(error), ResultTooLarge):
                state.leave_out(error)
                error = None
        if error is not None:
            fail(held, error, result=result)
            return True
        state.status, state.value, state.finished = "SUCCESSFUL", value, int(time.time() * 1000)
        ttl_ms = held.backend.result_ms
        text = _text(held) if ttl_ms > 1 else ""
        object.__setattr__(result, "_return_value", value)
        _finish(held, result, TaskResultStatus.SUCCESSFUL)
        _call_back(held, held.read.on_success)
        held.settle("done", ttl_ms, text)
        return True

    def give_up(self, held: HeldJob, where: str) -> None:
        """See `Kind.give_up`."""
        held.said = output_of(held, held.read)
        fail(held, TaskTimeout() if held.stopped_by is None else TaskCancelled(), trace=hung(held, where))


def fail(held: HeldJob, error: BaseException, *, result: Any = None, final: bool = False, trace: str = "") -> None:
    """Say what becomes of a job whose attempt failed: another one after a delay, or its end among the dead."""
    call, state = held.read, held.state
    attempts, backoff, timeout = held.retries
    told = held.failure = tell(error, call, timeout=timeout or None, trace=trace)
    if final:
        _note_lost(held)
    state.errors.append((told.path, told.text))
    if not final and held.stopped_by is None and len(state.workers) < (attempts or 1):
        note_failed(state, int(time.time() * 1000))
        delay_ms = backoff_ms(timedelta(seconds=backoff or 0), len(state.workers))
        _log_retry(held, delay_ms, told)
        held.settle("retry", delay_ms, _text(held))
        return
    state.status, state.finished = "FAILED", int(time.time() * 1000)
    result = result or as_result(held.task, held.result_id, call, state)  # type: ignore[arg-type]
    result.errors[:] = [TaskError(exception_class_path=known, traceback=shown) for known, shown in state.errors]
    token = EXECUTING.set(held)  # whose labels the line of Django's receiver has, whatever the thread
    try:
        _finish(held, result, TaskResultStatus.FAILED, told.error)
    finally:
        EXECUTING.reset(token)
    _call_back(held, call.on_failure)
    held.settle("dead", 0, _text(held))


def _call_back(held: HeldJob, path: str) -> None:
    """Have this task be enqueued with the end of the job, if there is one."""
    if path:
        where = held.shard.queue, held.read.backend
        held.callback = after_job(path, held.member, held.lease, held.result_id, *where, durable=held.stored)


def _log_retry(held: HeldJob, delay_ms: int, told: Told) -> None:
    event = {"event": "retrying", **held.labels, "reason": told.title, "traceback": told.text}
    text, args = "%s failed, the next attempt is in %.1f s: %s", (held.title, delay_ms / 1000, told.title)
    log_ended(logging.WARNING, text, args, {"delayq": event, **held.labels}, told.error, told.text)


def _note_lost(held: HeldJob) -> None:
    """Note the executions that others have begun since the last recorded attempt, and that did not end."""
    worker, claimed = held.former
    note_lost(held.state, held.entry.reclaims + 1, worker, claimed)


def _text(held: HeldJob) -> str:
    """Return the job's text with what has become of it. Raises what `encode` does."""
    return encode(held.shard.queue, held.member, held.line, held.state)


def _finish(held: HeldJob, result: Any, status: Any, error: BaseException | None = None) -> None:
    """Have `task_finished` be sent once that is recorded, in this context; at once where only Django receives it.

    Django's own receiver logs, and nothing more.
    """
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", instant(held.state.finished))
    if len(task_finished.receivers) > 1:
        held.after = partial(copy_context().run, _send_finished, held, result, error)
    else:
        _send_finished(held, result, error)


def _send_finished(held: HeldJob, result: Any, error: BaseException | None) -> None:
    values = {"sender": type(held.backend), "task_result": result}
    if error is None:
        send(task_finished, "task_finished", cut=BaseException, **values)
        return
    try:
        raise error  # Django's receiver logs the exception that is being handled
    except BaseException:
        send(task_finished, "task_finished", cut=BaseException, **values)
