"""django-q2 and django-tasks-scheduler: their tables, read by their own models.

Note [Calendar steps are crons]
django-q2 moves `next_run` by a day, a week, or a month of its UTC date, and corrects the hour for the zone. That is a
cron expression, unless the day is missing in some months: then it moves to the 28th and stays there, and is refused.
"""

import ast
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

from ...recurrence.zone import get_zone
from .crons import convert_croniter
from .entry import ImportedEntry, ReadOptions, Refused, make_aware, read_entry, read_rows, to_timedelta

_EVERY = {"H": timedelta(hours=1), "BW": timedelta(weeks=2)}
_MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}


def read_django_q2(_source: str, options: ReadOptions) -> Iterator[ImportedEntry]:
    rows = read_rows("django_q", "Schedule")
    conf = import_module("django_q.conf").Conf
    zone = options.timezone or str(conf.TIME_ZONE or "UTC")
    for row in rows:
        yield read_entry(row.name or f"{row.func} #{row.pk}", row.func, _fill_from_django_q2, row, zone, conf.CATCH_UP)


def _fill_from_django_q2(entry: ImportedEntry, row: Any, zone: str, catch_up: bool) -> None:
    if row.repeats == 0:
        entry.skipped = "It has no repeats left."
    kind, following = row.schedule_type, make_aware(row.next_run)
    if kind == "C":
        entry.set_cron(convert_croniter(row.cron or ""), zone)
    elif kind == "O":
        entry.set_once(following)
    elif kind == "I" or kind in _EVERY:
        entry.set_every(_EVERY.get(kind) or timedelta(minutes=row.minutes or 1), following)
    elif kind in ("D", "W", *_MONTHS):
        entry.set_cron(_spell_calendar_step(kind, following, zone), zone)
    else:
        raise Refused(f"Schedules of the type {kind!r} are not known here.")
    if kind == "BW" and zone != "UTC":
        entry.notes.append("two weeks are an interval here: when the clocks change, its hour changes too")
    entry.args, entry.kwargs = _read_arguments(row)
    q_options = entry.kwargs.pop("q_options", {})
    if timeout := q_options.pop("timeout", None):
        entry.values["timeout"] = to_timedelta(timeout)
    entry.values |= {"overlap": "allow", "missed": "all" if catch_up and kind != "C" else "latest"}
    if row.cluster:
        entry.values["queue"] = row.cluster
    if row.repeats > 0 and kind != "O":
        entry.values["max_runs"] = row.repeats
    entry.leave_out({**q_options, "hook": row.hook, "intended_date_kwarg": row.intended_date_kwarg})


def _spell_calendar_step(kind: str, following: datetime, zone: str) -> str:
    """Return the cron expression of a calendar step through this point. See Note [Calendar steps are crons]."""
    local = following.astimezone(get_zone(zone))
    time = f"{local.second} {local.minute} {local.hour}" if local.second else f"{local.minute} {local.hour}"
    if kind == "D":
        return f"{time} * * *"
    if kind == "W":
        return f"{time} * * {local.isoweekday() % 7}"
    if max(local.day, following.day) > 28 or local.month != following.month:
        raise Refused(
            f"Its day of the month is {local.day} ({following.day} in UTC): in a shorter month django-q2 moves it to "
            "an earlier day, and keeps that. Create the schedule by hand: day L is the last day of every month."
        )
    months = sorted((local.month - 1 + number) % 12 + 1 for number in range(0, 12, _MONTHS[kind]))
    return f"{time} {local.day} {'*' if kind == 'M' else ','.join(map(str, months))} *"


def _read_arguments(row: Any) -> tuple[list[Any], dict[str, Any]]:
    """Parse the arguments as django-q2 does: literals only; keywords as a dict, or as in a call."""
    try:
        call: Any = ast.parse(f"f({row.kwargs or ''})", mode="eval").body
        kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        kwargs |= ast.literal_eval(call.args[0]) if call.args else {}
        args = ast.literal_eval(row.args) if row.args else ()
    except (SyntaxError, ValueError, TypeError):
        raise Refused("Its arguments are not Python literals. Correct them there.") from None
    return list(args) if isinstance(args, tuple) else [args], kwargs


def read_django_tasks_scheduler(_source: str, _options: ReadOptions) -> Iterator[ImportedEntry]:
    for row in read_rows("scheduler", "Task").prefetch_related("callable_args", "callable_kwargs"):
        yield read_entry(row.name, row.callable, _fill_from_django_tasks_scheduler, row)


def _fill_from_django_tasks_scheduler(entry: ImportedEntry, row: Any) -> None:
    if row.task_type == "CronTaskType":
        entry.set_cron(convert_croniter(row.cron_string or ""), "UTC")
    elif row.task_type == "RepeatableTaskType":
        begin = None if row.scheduled_time is None else make_aware(row.scheduled_time)
        entry.set_every(timedelta(**{row.interval_unit: row.interval}), begin)
        entry.values["max_runs"] = None if row.repeat is None else row.repeat + 1
    else:
        entry.set_once(row.scheduled_time)
    entry.values |= {
        "enabled": row.enabled,
        "queue": row.queue,
        "timeout": to_timedelta(row.timeout) if row.timeout else None,
    }
    entry.args = [_read_argument(each) for each in row.callable_args.all()]
    entry.kwargs = {each.key: _read_argument(each) for each in row.callable_kwargs.all()}
    entry.leave_out({"at_front": row.at_front})


def _read_argument(row: Any) -> Any:
    if row.arg_type == "callable":
        raise Refused(f"An argument is what {row.val}() returns at each run: call it in the task.")
    return row._parsed_val()
