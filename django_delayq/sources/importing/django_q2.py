"""django-q2: its table of schedules, read by its own model.

Note [Calendar steps]
django-q2 moves `next_run` by a day, a week, or a month of its UTC date, and corrects the hour for the zone. That is a
cron expression, unless the day is missing in some months: then it moves to the 28th and stays there, and is refused.
"""

import ast
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from typing import Any

from ...recurrence.zone import get_zone
from .crons import from_croniter
from .entry import Entry, Options, Refused, aware, guarded, model_of, once, seconds

DIFFERS = (
    "django-q2 starts a task although the last one is still busy: so does overlap 'allow', which is set here.",
    "With Q_CLUSTER's catch_up (its default) it makes up for every missed time, at most max_catch_up of them here; "
    "for cron it makes up for one, as missed 'latest'.",
    "It looks every 30 s, so that a task starts up to so much late; here within milliseconds.",
    "A time of a cron expression that comes twice runs both times there, once here (dst_overlap). A daily or longer "
    "one whose time does not exist on some day runs an hour earlier there from then on; here it keeps its time.",
)
_EVERY = {"H": timedelta(hours=1), "BW": timedelta(weeks=2)}
_MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    rows = model_of("django_q", "Schedule")._default_manager.order_by("pk")
    conf = import_module("django_q.conf").Conf
    for row in rows:
        name = row.name or f"{row.func} #{row.pk}"
        yield guarded(name, row.func, partial(_entry, row, name, conf, options))


def _entry(row: Any, name: str, conf: Any, options: Options) -> Entry:
    if row.repeats == 0:
        return Entry(name, row.func, skipped="It has run as often as it was to.")
    zone = options.timezone or str(conf.TIME_ZONE or "UTC")
    missed = "all" if conf.CATCH_UP and row.schedule_type != "C" else "latest"
    values: dict[str, Any] = {"overlap": "allow", "missed": missed}
    args, kwargs = _arguments(row)
    notes = []
    q_options = kwargs.pop("q_options", {})
    if timeout := q_options.pop("timeout", None):
        values["timeout"] = seconds(timeout)
    if left_out := sorted({*q_options, *(["hook"] if row.hook else [])}):
        notes.append(f"left out: {', '.join(left_out)}")
    if row.cluster:
        values["queue"] = row.cluster
    if row.intended_date_kwarg:
        notes.append(f"{row.intended_date_kwarg} is not passed: a task with takes_context=True has context.due_at")
    if row.repeats > 0 and row.schedule_type != "O":
        values["max_runs"] = row.repeats
    when, phase = _when(row, zone)
    if row.schedule_type == "BW" and zone != "UTC":
        notes.append("two weeks are an interval here: when the clocks change, its hour changes too")
    return Entry(name, row.func, args, kwargs, {**values, **when}, phase, tuple(notes))


def _when(row: Any, zone: str) -> tuple[dict[str, Any], Any]:
    kind = row.schedule_type
    if kind == "C":
        return {"kind": "cron", "cron": from_croniter(row.cron or ""), "timezone": zone}, None
    if row.next_run is None:
        raise Refused("It has no next run.")
    following = aware(row.next_run)
    if kind == "O":
        return once(following), None
    if kind == "I":
        return {"kind": "every", "every": timedelta(minutes=row.minutes or 1)}, following
    if kind in _EVERY:
        return {"kind": "every", "every": _EVERY[kind]}, following
    if kind not in ("D", "W", *_MONTHS):
        raise Refused(f"Schedules of the type {kind!r} are not known here.")
    return {"kind": "cron", "cron": _calendar(kind, following, zone), "timezone": zone}, None


def _calendar(kind: str, following: datetime, zone: str) -> str:
    """Return the cron expression of a calendar step through this point. See Note [Calendar steps]."""
    local = following.astimezone(get_zone(zone))
    time = f"{local.second} {local.minute} {local.hour}" if local.second else f"{local.minute} {local.hour}"
    if kind == "D":
        return f"{time} * * *"
    if kind == "W":
        return f"{time} * * {local.isoweekday() % 7}"
    if max(local.day, following.day) > 28 or local.month != following.month:
        raise Refused(
            f"Its day is the {local.day}. ({following.day}. in UTC): where a month is shorter, django-q2 moves it, and "
            "leaves it there. Make a schedule by hand: day L is the last one of every month."
        )
    step = _MONTHS[kind]
    months = ",".join(str(month) for month in sorted((local.month - 1 + step * n) % 12 + 1 for n in range(12 // step)))
    return f"{time} {local.day} {'*' if step == 1 else months} *"


def _arguments(row: Any) -> tuple[list[Any], dict[str, Any]]:
    """Parse the arguments as django-q2 does: literals only.

    Raises:
        Refused: They are not literals; django-q2 would call the task without the keywords.
    """
    kwargs: Any = {}
    if row.kwargs:
        try:
            kwargs = ast.literal_eval(row.kwargs)
        except (SyntaxError, ValueError):
            try:
                call: Any = ast.parse(f"f({row.kwargs})", mode="eval").body
                kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
            except (SyntaxError, ValueError):
                raise Refused("Its keyword arguments are no literals of Python. Correct them there.") from None
    try:
        args = ast.literal_eval(row.args) if row.args else ()
    except (SyntaxError, ValueError):
        raise Refused("Its arguments are no literals of Python. Correct them there.") from None
    if not isinstance(kwargs, dict):
        raise Refused("Its keyword arguments are no dict. Correct them there.")
    return list(args) if isinstance(args, tuple) else [args], kwargs
