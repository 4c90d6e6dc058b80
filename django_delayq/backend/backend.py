"""The backend that `TASKS` names. Enqueues, reads results, and what people do to jobs; executes nothing."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.db import transaction

from .. import conf, registry
from ..broker import NewJob, Place
from ..compat import AnyResult, AnyTask, BaseTaskBackend, InvalidTask, TaskResultDoesNotExist, task_enqueued
from ..exceptions import BrokerError, ForgedJob, JobCancelled, JobHeld, UnknownTask
from ..fields import utcnow
from ..jobs import IN_DATABASE, MAX_QUEUE, Call, DelayQTask, State, as_result, decode, encode, parse_id, result_id
from ..jobs.options import parse
from ..jobs.task import as_enqueued, retries_of, unique_key_of
from ..timing import from_ms, to_ms
from .checking import check_queues
from .late import durable, ledger
from .preparing import Preparer, absolute, moment, prepare
from .sending import shared

if TYPE_CHECKING:
    from ..models import Job


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
        others = type(self).validate_task is not DelayQBackend.validate_task
        self._preparer = Preparer(alias, self.validate_task, durable=self.settings.durable, each_time=others)
        #: The former name of an option of the backport; nothing here reads it.
        self.enqueue_on_commit = self.settings.enqueue_on_commit

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
        results, jobs = prepare(calls, self._preparer)
        if self.settings.durable:
            durable().enqueue(results, jobs, type(self))
        elif self.settings.enqueue_on_commit:
            transaction.on_commit(lambda: self._send(results, jobs), using=ledger().database())
        else:
            self._send(results, jobs)
        return results

    def get_result(self, result_id: str) -> AnyResult:
        """Return what stands of a job.

        Raises:
            TaskResultDoesNotExist: No job has this id, its result has expired, or its text is not of this project.
            BrokerUnavailable: Redis does not answer.
        """
        parsed = parse_id(result_id)
        if parsed is None:
            raise TaskResultDoesNotExist(result_id)
        if self.settings.durable and (row := durable().find(result_id, self.alias)) is not None:
            return self._stored_result(row)
        queue, member = parsed
        try:
            _, view = shared().view(queue, member)
        except BrokerError:
            if self.settings.results == "database" and (row := durable().find(result_id, self.alias)) is not None:
                return self._stored_result(row)
            raise
        text = view.result or view.payload  # the result, where it ended between the two reads
        in_database = self.settings.results == "database" and text in ("", IN_DATABASE)
        if in_database and (row := durable().find(result_id, self.alias)) is not None:
            return self._stored_result(row)
        if not text or text == IN_DATABASE:
            raise TaskResultDoesNotExist(result_id)
        try:
            _, call, state = decode(queue, member, text)
            task = registry.get_task(call.task)
        except (ForgedJob, UnknownTask) as error:
            raise TaskResultDoesNotExist(result_id) from error
        if call.backend != self.alias:
            raise TaskResultDoesNotExist(result_id)
        running = not view.result and view.died_ms is None and " " in view.holder
        if running:
            durable().note_running(state, view)
        run_after = call.run_after
        if view.waits_until_ms is not None and not running:
            run_after = view.waits_until_ms
        return as_result(self._task_of(task, call, queue, run_after), result_id, call, state, running=running)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Report what of this alias cannot work."""
        return check_queues(self.alias, self.queues)

    # -- more than Django's

    def cancel(self, result_id: str) -> bool:
        """Cancel a job that waits; its result is then failed, with the error JobCancelled. False where it has ended.

        Raises:
            JobHeld: A worker has it: it runs, or is about to.
            TaskResultDoesNotExist: No job has this id.
            BrokerUnavailable: Redis does not answer.
        """
        if self.settings.durable and (row := durable().find(result_id, self.alias)) is not None:
            return bool(durable().cancel(row, note_cancelled, self.settings.result_ttl))
        member, place, line, state = self._waiting(result_id)
        if line is None:
            return False
        note_cancelled(state)
        text = encode(place.queue, member, line, state)
        return self._changed(result_id, shared().jobs.change(place, member, "cancel", self.result_ms, text))

    def reschedule(self, result_id: str, when: datetime | timedelta) -> bool:
        """Let a job that waits start at another time (a timedelta counts from now). False where it has ended.

        Raises:
            JobHeld, TaskResultDoesNotExist, BrokerUnavailable: See `cancel`.
        """
        at_ms = to_ms(moment(when))
        if self.settings.durable and (row := durable().find(result_id, self.alias)) is not None:
            return bool(durable().move(row, from_ms(at_ms)))
        member, place, line, _ = self._waiting(result_id)
        if line is None:
            return False
        return self._changed(result_id, shared().jobs.change(place, member, "move", at_ms))

    @property
    def result_ms(self) -> int:
        """For how many ms a result is kept."""
        return max(1, int(self.settings.result_ttl * 1000))

    # -- inside

    def _stored_result(self, row: "Job") -> AnyResult:
        """Return what stands of a job in the database."""
        try:
            call, state, running, run_after = durable().read(row)
            task = registry.get_task(call.task)
        except (ForgedJob, UnknownTask) as error:
            raise TaskResultDoesNotExist(row.result_id) from error
        shown = self._task_of(task, call, row.queue, run_after)
        return as_result(shown, row.result_id, call, state, running=running)

    def _send(self, results: list[AnyResult], jobs: list[tuple[str, NewJob]]) -> None:
        """Send, and tell; a result whose job another one stands for becomes that one's."""
        if not jobs:
            return
        standing = shared().send(jobs)
        sender = type(self)
        for result, (queue, job), member in zip(results, jobs, standing, strict=True):
            if member and member != job.member:
                object.__setattr__(result, "id", result_id(queue, member))
            else:
                task_enqueued.send(sender, task_result=result)

    def _task_of(self, task: AnyTask, call: Call, queue: str, run_after: int | None) -> AnyTask:
        """Return the task as it was enqueued."""
        when = None if run_after is None else datetime.fromtimestamp(run_after / 1000, UTC if conf.use_tz() else None)
        return as_enqueued(task, backend=self.alias, queue_name=queue, priority=call.priority, run_after=when)

    def _waiting(self, result_id: str) -> tuple[str, Place, str | None, State]:
        """Return (member, place, line, state) of a job; the line is None where it has ended."""
        result = self.get_result(result_id)
        parsed = parse_id(result_id)
        assert parsed is not None  # noqa: S101 - it has a result
        queue, member = parsed
        place, view = shared().view(queue, member)
        if result.is_finished or not view.payload:
            return member, place, None, State()
        line, _, state = decode(queue, member, view.payload)
        return member, place, line, state

    def _changed(self, result_id: str, reply: str) -> bool:
        if reply == "HELD":
            raise JobHeld(f"A worker has the job {result_id} already, so that it can be neither cancelled nor moved.")
        return reply == "OK"


def note_cancelled(state: State) -> None:
    """Note in a state that the job was cancelled now."""
    state.status, state.finished = "FAILED", to_ms(utcnow())
    when = "between two attempts" if state.workers else "before it started"
    state.errors.append((_path(JobCancelled), f"Cancelled {when}."))


def _path(error: type[BaseException]) -> str:
    return f"{error.__module__}.{error.__qualname__}"
