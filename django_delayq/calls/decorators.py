"""`@periodic` declares a schedule next to its task. Needs no models; `declared` writes the schedules."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from ..exceptions import InvalidRecurrence
from ..recurrence import Cron, Every, Once, Policies, Recurrence, Windowed, parse_every
from ..recurrence.zone import find_instant, get_zone
from ..text import suggest_name
from . import registry
from .compat import AnyTask, is_task
from .validators import validate_json

T = TypeVar("T", bound=AnyTask)
LONGEST_NAME = 200
#: Anchor of rules that are only created for validation.
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)


class ScheduleFields(TypedDict, total=False):
    """The keywords of `@periodic`: `key`, and every field of a schedule that users can edit."""

    key: str
    name: str
    description: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    every: timedelta
    every_from: Literal["due", "finish"]
    at: datetime
    timezone: str
    dst_gap: Literal["run_after", "skip"]
    dst_overlap: Literal["once", "twice"]
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    jitter: timedelta
    enabled: bool
    pause_reason: str
    queue: str
    priority: int
    backend: str
    overlap: Literal["skip", "queue_one", "queue_all", "allow"]
    missed: Literal["latest", "all", "skip"]
    grace: timedelta | None
    catch_up_window: timedelta | None
    max_catch_up: int
    timeout: timedelta | None
    max_attempts: int
    backoff: timedelta
    keep: Literal["", "all", "failures", "last", "none"]
    keep_last: int | None
    expected_within: timedelta | None
    ping_url: str
    on_success: AnyTask | str
    on_failure: AnyTask | str


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared schedule; missing `values` have the defaults of `Schedule`. `key` identifies it across releases."""

    key: str
    task: str
    module: str
    values: Mapping[str, Any]
    func: Callable[..., Any] = field(repr=False, compare=False)


#: By (module, task, key): a module that is imported again replaces its own.
_made: dict[tuple[str, str, str], Declared] = {}


def periodic(cron: str = "", **fields: Unpack[ScheduleFields]) -> Callable[[T], T]:
    """Declare a schedule for a task: `@periodic("0 9 * * 1-5", timezone="Europe/Riga")` above `@task`.

    Takes exactly one of `cron`, `every` (a timedelta) and `at` (a datetime); the other keywords are fields of
    `Schedule`. A naive datetime is read in `timezone`, which is then required. `key` identifies the schedule across
    changes of the code; the default is its `name`, whose default is the path of the task. Declarations may be stacked.
    Nothing is scheduled until `manage.py delayq_sync`.

    Raises InvalidRecurrence or InvalidArguments if the time, a policy or the arguments are wrong, TypeError for an
    unknown keyword or a decorator below `@task`, ValueError if the task has that key, or key or name is not a text of 1
    to 200 characters.
    """
    if not isinstance(cron, str):
        raise TypeError('@periodic needs a time: @periodic("0 9 * * 1-5"), or every=timedelta(minutes=15).')
    if unknown := sorted(fields.keys() - ScheduleFields.__annotations__.keys()):
        hint = suggest_name(unknown[0], ScheduleFields.__annotations__)
        raise TypeError(f"periodic() has no argument {unknown[0]!r}.{hint}")
    values = _build_values(cron, fields)

    def declare(task: T) -> T:
        if not is_task(task):
            raise TypeError(
                f"@periodic got {task!r}, which is not a task: write @periodic above @task, so that it gets what @task "
                "makes of the function."
            )
        path, module, key = task.module_path, _find_module(), fields.get("key")
        name = _check_text("name", values.get("name", key or path))
        key = _check_text("key", key or values.get("name", path))
        found = Declared(key, path, module, {**values, "name": name, "task": path}, task.func)
        _check_rule(found.values)
        registry.check_call(task, found.values.get("args", []), found.values.get("kwargs", {}))
        known = _made.get((module, path, key))
        if known is not None and known.func is task.func:
            raise ValueError(f"The task {path} has a schedule {key!r} already: give each a name of its own, name='…'.")
        _made[module, path, key] = found
        return task

    return declare


def list_declared() -> list[Declared]:
    """Return everything declared in the modules imported so far."""
    return list(_made.values())


def _build_values(cron: str, fields: ScheduleFields) -> dict[str, Any]:
    """Return the fields of the schedule, with its kind, arguments as JSON returns them, and instants in its zone."""
    values: dict[str, Any] = {**fields}
    values.pop("key", None)
    every, at = values.get("every"), values.get("at")
    if (bool(cron), every is not None, at is not None).count(True) != 1:
        raise InvalidRecurrence('Give exactly one of cron, every and at: @periodic("0 9 * * 1-5").')
    if cron and (interval := parse_every(cron)) is not None:
        cron, every = "", interval
    kind = "cron" if cron else "every" if every is not None else "once"
    values |= {"kind": kind, "cron": cron, "every": every, "at": at}
    if isinstance(values.get("args"), tuple):
        values["args"] = list(values["args"])
    validate_json(values.get("args", []), values.get("kwargs", {}))
    for name in values.keys() & {"args", "kwargs"}:
        values[name] = json.loads(json.dumps(values[name]))
    for name in ("on_success", "on_failure"):
        if is_task(values.get(name)):
            values[name] = values[name].module_path
    for name in ("at", "start_at", "end_at"):
        value = values.get(name)
        if isinstance(value, datetime) and value.tzinfo is None and "timezone" in values:  # otherwise it is refused
            values[name] = find_instant(value, get_zone(values["timezone"]), name)
    return values


def _check_rule(values: Mapping[str, Any]) -> None:
    """Check recurrence and policies. The model checks what depends on settings or the clock."""
    rule: Recurrence
    if values["kind"] == "cron":
        options = {name: values[name] for name in ("timezone", "dst_gap", "dst_overlap") if name in values}
        rule = Cron(values["cron"], key=values["name"], **options)
    elif values["kind"] == "every":
        rule = Every(values["every"], anchor=_SOME_DAY)
    else:
        rule = Once(values["at"])
    Windowed(rule, values.get("start_at"), values.get("end_at"))
    Policies(**{name: values[name] for name in ("overlap", "missed") if name in values})


def _find_module() -> str:
    """Return the name of the module that is being imported, however deep the call is."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise ValueError(f"The {name} of a schedule is a text of 1 to {LONGEST_NAME} characters, not {value!r}.")
    return value
