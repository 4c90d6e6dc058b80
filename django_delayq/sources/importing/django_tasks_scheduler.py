"""django-tasks-scheduler: its table of tasks, read by its own model."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from .crons import from_croniter
from .entry import Entry, Options, Refused, aware, guarded, model_of, once, seconds

DIFFERS = (
    "It schedules the next run when the last one has ended, so that none overlap: so does overlap 'skip' here.",
    "Cron expressions are in UTC, and so they are here: set the schedule's time zone afterwards, if you want another.",
    "Each interval that passes without a run counts as one of `repeat`; here only what runs does (max_runs).",
    "A failure is mailed to ADMINS there; here it is in the list of failures.",
)


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    rows = model_of("scheduler", "Task")._default_manager.order_by("pk")
    for row in rows.prefetch_related("callable_args", "callable_kwargs"):
        yield guarded(row.name, row.callable, partial(_entry, row))


def _entry(row: Any) -> Entry:
    notes = []
    values: dict[str, Any] = {"enabled": row.enabled, "queue": row.queue}
    if row.timeout:
        values["timeout"] = seconds(row.timeout)
    if row.at_front:
        notes.append("at_front is left out: what is due first starts first")
    phase = None
    if row.task_type == "CronTaskType":
        values |= {"kind": "cron", "cron": from_croniter(row.cron_string or ""), "timezone": "UTC"}
    elif row.task_type == "RepeatableTaskType":
        if not row.interval or not row.interval_unit:
            raise Refused("It has no interval.")
        values |= {"kind": "every", "every": timedelta(**{row.interval_unit: row.interval})}
        phase = None if row.scheduled_time is None else aware(row.scheduled_time)
        if row.repeat is not None:
            values["max_runs"] = row.repeat + 1
    elif row.scheduled_time is None:
        raise Refused("It has no time.")
    else:
        values |= once(row.scheduled_time)
    args = [_value(arg) for arg in row.callable_args.all()]
    kwargs = {arg.key: _value(arg) for arg in row.callable_kwargs.all()}
    return Entry(row.name, row.callable, args, kwargs, values, phase, tuple(notes))


def _value(arg: Any) -> Any:
    if arg.arg_type == "callable":
        raise Refused(f"An argument is what {arg.val}() returns at each run: call it in the task.")
    return arg._parsed_val()
