"""What follows an end: the job that `on_success` or `on_failure` names. Made here, neither sent nor stored.

Note [Beside its cause]
A callback waits in the queue of what has ended, and in the shard of a job that has. So one script can end a job of
Redis alone and add its callback, and one transaction can write the outcome of a row and the row of its callback: there
is one for each outcome, or none, whoever dies when. Its name follows from the lease under which the job has ended, so
that what is written or sent once more is there already.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import registry
from ..compat import AnyTask, InvalidTask, is_task
from .ids import key_hash, new_members, with_head
from .record import Call, CallLine, encode
from .task import retries_of

NAMES = ("on_success", "on_failure")


class Callback(NamedTuple):
    """A job that follows an end. `line` is that of its call."""

    member: str
    queue: str
    call: Call
    line: str

    @property
    def payload(self) -> str:
        """Its signed text."""
        return encode(self.queue, self.member, self.line)


def path_of(name: str, value: object) -> str:
    """Return the path of the task that an option names, '' for none.

    Raises:
        InvalidTask: It is neither a task nor a text.
    """
    if is_task(value):
        return str(value.module_path)
    if value is not None and not isinstance(value, str):
        raise InvalidTask(f"{name} must be a @task function or its path, not {value!r}.")
    return value or ""


def callbacks_of(task: AnyTask) -> tuple[str, str]:
    """Return the paths that a task names for its success and its failure, '' for none.

    Raises:
        InvalidTask: They are no tasks.
        UnknownTask: No installed app offers such a task.
        InvalidArguments: It does not take the id of a result.
    """
    success, failure = (path_of(name, getattr(task, name, None)) for name in NAMES)
    for path in {success, failure} - {""}:
        registry.check_call(registry.get_task(path), ["id"], {})
    return success, failure


def after_job(path: str, member: str, lease: str, result_id: str, queue: str, alias: str, *, durable: bool) -> Callback:
    """Return what follows the end of a job under this lease: it is called with the id of its result."""
    name = with_head("j" + key_hash(member, lease), member[1:])
    return _made(path, [result_id], name, queue, alias, durable=durable)


def after_run(path: str, args: Sequence[Any], queue: str, alias: str) -> Callback:
    """Return what follows the outcome of a due point; always durable."""
    return _made(path, list(args), new_members(1)[0], queue, alias, durable=True)


def _made(path: str, args: list[Any], member: str, queue: str, alias: str, *, durable: bool) -> Callback:
    """Where this code does not know the task, a worker that does will: a callback has no callbacks of its own."""
    task, now_ms = registry.find_task(path), int(time.time() * 1000)
    call = Call(
        path, args, {}, alias, now_ms, 0 if task is None else int(task.priority), None, "", *retries_of(task),
        durable=durable,
    )  # fmt: skip
    return Callback(member, queue, call, CallLine(call).encode(args, {}, now_ms))
