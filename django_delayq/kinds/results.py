"""What a task gave back, a value or an error, as it is stored and shown. Nothing else looks into either. Never raises.

Note [Given back]
What a task gives back is code of its own: its `items()`, `__str__` or `__class__` may raise anything, also what is no
`Exception`, and another thread may change it while it is read. Whoever stumbles over that after the task would have it
executed once more. So it is looked into here only, once and right after the call, and all others get plain texts and a
copy in JSON's types. What can be told of an error that cannot be told is its class and where it was raised.
"""

import json
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import conf
from ..compat import normalize_json
from ..exceptions import DelayQError, InvalidArguments, ResultTooLarge, TaskTimeout
from ..jobs import Call
from ..redaction import redact_text, secret_texts
from ..registry import parameters_of
from ..rows import ScheduleRow
from ..validators import storable_json

MAX_ERROR_CHARS = 20_000
MAX_TITLE_CHARS = 200

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def take(value: Any) -> tuple[Any, BaseException | None]:
    """Return a copy of a value in JSON's types, or what it raised when it was looked into. See Note [Given back].

    A value above MAX_RESULT_BYTES is a `ResultTooLarge`: the task that returned it has succeeded all the same.
    """
    if value is None:
        return None, None
    try:
        text = _text_of(value)
        size, most = len(text.encode("utf-8", "surrogatepass")), conf.get_config().max_result_bytes
        if size > most:
            return None, ResultTooLarge(
                f"The result is {size:,} bytes of JSON; at most {most:,} are kept (DELAYQ['MAX_RESULT_BYTES']). "
                "Store large values elsewhere and return a key."
            )
        return json.loads(text), None
    except BaseException as error:
        return None, error


def take_or_note(value: Any) -> tuple[Any, BaseException | None]:
    """Do as `take`, with a note in place of what is no JSON or what a database does not store: that is no failure."""
    taken, error = take(value)
    if error is None:
        try:
            storable_json([[taken]])
            return taken, None
        except InvalidArguments as refused:
            said = str(refused).replace("arguments are", "result is").replace("arguments contain", "result contains")
            return {"not stored": said}, None
    if type(error) is ResultTooLarge:
        return {"not stored": str(error)}, None
    if issubclass(type(error), TypeError | ValueError | RecursionError):
        said = _guarded(lambda: clean(redact_text(str(error))), "it does not say why")
        return {"not stored": f"The result is not plain JSON: {said}"[:MAX_TITLE_CHARS]}, None
    return None, error


def _text_of(value: Any) -> str:
    try:
        return _dumps(value)  # in one call, so that no other thread comes in between
    except TypeError:
        return _dumps(normalize_json(value))


class Told(NamedTuple):
    """What can be told of an error: the path of its class, a line, and the traceback, without the call's secrets.

    `error` is it, or what stands for it where it cannot be formatted: for whoever logs it.
    """

    path: str
    title: str
    text: str
    error: BaseException


def tell(error: BaseException, call: ScheduleRow | Call, *, timeout: float | None = None, trace: str = "") -> Told:
    """Tell of an error that ended a call, after `timeout` seconds if it is our own; `trace` in place of its traceback.

    The texts are such as every database stores: no NUL, no half of a surrogate pair.
    """

    def shown(make: Callable[[], str], otherwise: str) -> str:
        def make_shown() -> str:
            secrets = secret_texts(call.args, call.kwargs, parameters_of(call.task))
            return clean(redact_text(make(), secrets))

        return _guarded(make_shown, otherwise)

    name = _guarded(lambda: clean(type(error).__name__), "an error without a name")
    path = _guarded(lambda: clean(f"{type(error).__module__}.{type(error).__qualname__}"), "builtins.BaseException")
    title = shown(lambda: _title(error, timeout), name)[:MAX_TITLE_CHARS]
    text = shown(lambda: trace or "".join(traceback.format_exception(error)), "")
    if not text:
        error_of_ours = DelayQError(f"{path}, which cannot be formatted")
        where = shown(lambda: "".join(traceback.format_tb(error.__traceback__)), "")
        text, error = f"{where}{path}, which cannot be formatted.\n", error_of_ours
    return Told(path, title, text[-MAX_ERROR_CHARS:], error)


def _title(error: BaseException, timeout: float | None) -> str:
    if issubclass(type(error), TaskTimeout) and not error.args and timeout is not None:
        return f"TaskTimeout: stopped after its timeout of {timeout:g} s"
    return f"{type(error).__name__}: {error}"


def clean(text: str) -> str:
    """Return text that every database stores: no NUL, no half of a surrogate pair."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _guarded(make: Callable[[], str], otherwise: str) -> str:
    try:
        return make()
    except BaseException:
        return otherwise
