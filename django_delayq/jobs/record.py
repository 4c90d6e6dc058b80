"""The text of a job in Redis: a signature, what is to be called, and what has become of it, one line each.

The second line never changes, so that it is encoded once. All instants are ms since the epoch.

Note [Traced]
In which trace a job was enqueued (`tracing.py`) stands in the call's line as first `args`, before the real ones, for
the reason of Note [Signed for a queue]: workers of any version read the same call, and sign the line anew as it is.

Note [Signed for a queue]
Whoever can write to Redis shall not choose which workers execute a job. So the text that is signed begins with the
prefix and the queue that it is for. They stand in the call's line as a first `backend`, before the real one: where JSON
names a key twice, Python takes the last. So workers of before this rule, which refuse a key that they do not know, read
the same call, and what they sign anew still begins like this. The shard is no part of it, as a job moves where their
number changes. A line in the database says nothing of it: there the row has the queue.
What was signed before the rule does not say its queue. It counts while ACCEPT_JOBS_WITHOUT_QUEUE lets it.

Note [Past]
When its attempts began and ended, and what they were before the job was revived, stands in the state's line as a first
`value`, before the real one, for the same reason: workers of before it read the same state. They leave it out of what
they sign anew, so that there may be more errors than times. Most jobs succeed at once and have no past: their lines are
as they were, and are read as they were.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from .. import conf, history
from ..exceptions import ForgedJob, ResultTooLarge, UnreadableJob
from ..history import Attempt
from ..validators import MAX_ARGUMENT_BYTES, not_plain, too_large
from .signing import sign, verify

#: Stands in Redis for the result of a job that is a row of the database.
IN_DATABASE = "row"
#: The class of the error that says that a value was too large to be kept.
TOO_LARGE = f"{ResultTooLarge.__module__}.{ResultTooLarge.__qualname__}"

#: How a line begins that says for which queue it is. See Note [Signed for a queue].
_MARK = '{"backend":"'
#: How a line begins that says in which trace it was enqueued. See Note [Traced].
_TRACED = '{"args":{'
#: How a line begins that tells of earlier attempts. See Note [Past].
_PAST = '{"value":{"times":'
#: What stands in every line of a state, in this order.
_STATE = ("status", "started", "attempted", "finished", "workers", "value")
_state_values = attrgetter(*_STATE)

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_first_value = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be called, as it was enqueued. Where options are None, those of the task or of the backend count."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    enqueued: int
    priority: int = 0
    run_after: int | None = None
    unique: str = ""
    max_attempts: int | None = None
    backoff: float | None = None
    timeout: float | None = None
    durable: bool = False
    on_success: str = ""
    on_failure: str = ""


class Span(NamedTuple):
    """When an attempt began and ended, None where that is not known. `worker` is there where it did not end."""

    started: int | None
    finished: int | None
    worker: str | None = None

    @property
    def lost(self) -> bool:
        """True where its worker died."""
        return self.worker is not None


@dataclass(slots=True, eq=False)
class State:
    """What has become of a job. `errors` are (exception class path, traceback); `status` is empty until it ended.

    `times` and `earlier` are for `attempts.py`: attempts of this time and of before the job was revived.
    """

    status: str = ""
    started: int | None = None
    attempted: int | None = None
    finished: int | None = None
    errors: list[tuple[str, str]] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    value: Any = None
    times: Sequence[Span] = field(default=(), init=False)
    earlier: Sequence[Attempt] = field(default=(), init=False)

    def leave_out(self, error: BaseException) -> None:
        """Note that there was a value, and why it is not kept."""
        self.errors.append((TOO_LARGE, str(error)))

    @property
    def left_out(self) -> str:
        """Why the value of a job that has succeeded is not kept, '' where it is.

        The note is one error more than attempts can have failed. It stands there because all versions read it there.
        """
        if self.status != "SUCCESSFUL" or len(self.errors) < max(1, len(self.workers)):
            return ""
        path, why = self.errors[-1]
        return why if path == TOO_LARGE else ""


_REST = [item for item in fields(Call) if item.name not in ("task", "args", "kwargs", "enqueued")]


class CallLine:
    """The line of a call whose arguments are still to come: the same for all jobs of one task with the same options."""

    __slots__ = ("_head", "_tail", "call")

    def __init__(self, call: Call) -> None:
        """Take everything but the arguments and the time from this call."""
        self.call = call
        given = {item.name: getattr(call, item.name) for item in _REST if getattr(call, item.name) != item.default}
        self._head = f'{{"task":{_dumps(call.task)},"args":'
        self._tail = f",{_dumps(given)[1:]}"

    def encode(self, args: list[Any], kwargs: dict[str, Any], enqueued: int) -> str:
        """Return the line of the call with these arguments, enqueued at that time.

        Raises:
            InvalidArguments: They are no plain JSON, or too large.
        """
        try:
            positional, named = (_dumps(args) if args else "[]"), (_dumps(kwargs) if kwargs else "{}")
            text = f'{self._head}{positional},"kwargs":{named},"enqueued":{enqueued}{self._tail}'
        except (TypeError, ValueError, RecursionError) as error:
            raise not_plain(error) from None
        if len(text) > MAX_ARGUMENT_BYTES:
            raise too_large(len(text))
        return text


def encode(queue: str, member: str, line: str, state: State | None = None) -> str:
    """Return the text of a job with this call's line, signed for this queue.

    Raises:
        ValueError, TypeError: The state's value is no plain JSON.
    """
    rest = "" if state is None else f"\n{encode_state(state)}"
    text = f"{_mark(conf.get_config().prefix, queue)}{bare(line)[1:]}{rest}"
    return f"{sign(member, text)}\n{text}"


def bare(line: str) -> str:
    """Return the line of a call without what it says of its queue."""
    return "{" + line.partition(",")[2] if line.startswith(_MARK) else line


def with_trace(line: str, carried: Mapping[str, str]) -> str:
    """Return the line of a call with what is carried of a trace. See Note [Traced]."""
    return f'{{"args":{_dumps(carried)},{line[1:]}' if carried else line


def trace_of(line: str) -> dict[str, str]:
    """Return what the line of a call carries of a trace; empty where there is nothing that can be read."""
    if not line.startswith(_TRACED):
        return {}
    try:
        found, _ = _first_value(line, len(_TRACED) - 1)
    except (ValueError, RecursionError):
        return {}
    return {name: text for name, text in found.items() if isinstance(text, str)}


@lru_cache(maxsize=1024)
def _mark(prefix: str, queue: str) -> str:
    return f'{_MARK}{prefix}:{queue}",'


def encode_state(state: State) -> str:
    """Return the line of a state: ASCII, so that every database stores it.

    Raises:
        ValueError, TypeError: Its value is no plain JSON.
    """
    values = dict(zip(_STATE, _state_values(state), strict=True))
    if state.errors:
        values["errors"] = state.errors
    text = _dumps(values)
    if not (state.times or state.earlier):
        return text
    times = [span if span.lost else span[:2] for span in state.times]
    return f'{_PAST}{_dumps(times)},"earlier":{_dumps(history.to_json(state.earlier))}}},{text[1:]}'


def _read_past(state: State, line: str) -> None:
    """Take the past from the line of a state, as far as it can be read: no job waits for its sake. See Note [Past]."""
    past, _ = _first_value(line, line.index(":") + 1)
    times = past["times"]
    state.times = [_span(*span[:3]) for span in times if isinstance(span, list)] if isinstance(times, list) else ()
    state.earlier = history.from_json(past.get("earlier"))


def _span(started: Any = None, finished: Any = None, worker: Any = None) -> Span:
    return Span(history.as_ms(started), history.as_ms(finished), worker if isinstance(worker, str) else None)


def decode(queue: str, member: str, payload: str) -> tuple[str, Call, State]:
    """Return the line, the call and the state of a job of this queue.

    Raises:
        ForgedJob: The text is not ours, or of another queue or prefix.
        UnreadableJob: It is ours, but of a version that this code does not know.
    """
    signature, _, text = payload.partition("\n")
    verify(member, text, signature)
    config = conf.get_config()
    if text.startswith(_MARK):
        if not text.startswith(_mark(config.prefix, queue)):
            signed_for = text[len(_MARK) :].partition('"')[0]
            raise ForgedJob(
                f"The text of the job {member!r} is signed for the queue {signed_for!r}, but stands in "
                f"{config.prefix}:{queue}."
            )
    elif not config.accept_jobs_without_queue:
        raise ForgedJob(
            f"The text of the job {member!r} does not say its queue: an older version signed it. Where that is no "
            "surprise, set DELAYQ['ACCEPT_JOBS_WITHOUT_QUEUE'] to True."
        )
    line, _, rest = text.partition("\n")
    line = bare(line)
    return line, *decode_lines(member, line, rest)


def decode_lines(member: str, line: str, rest: str) -> tuple[Call, State]:
    """Return the call and the state of a job from their lines, wherever they stood.

    Raises:
        UnreadableJob: They are of a version that this code does not know, or damaged.
    """
    try:
        call = Call(**json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable(member, error) from error
    return call, decode_state(member, rest)


def decode_state(member: str, rest: str) -> State:
    """Return the state of a job from its line alone. Raises what `decode_lines` does."""
    try:
        state = State(**json.loads(rest)) if rest else State()
        state.errors = [(str(path), str(trace)) for path, trace in state.errors]
        if rest.startswith(_PAST):
            _read_past(state, rest)
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable(member, error) from error
    return state


def _unreadable(member: str, error: Exception) -> UnreadableJob:
    return UnreadableJob(f"The text of the job {member!r} is of a later version: {error}.")
