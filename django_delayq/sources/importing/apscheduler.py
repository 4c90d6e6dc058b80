"""APScheduler 3: the jobs of a scheduler object and of its stores.

Note [Pickled stores]
Stores hold pickles, which only APScheduler's own store opens, as at each start of the scheduler. It is asked for one
job at a time, because `get_all_jobs` deletes jobs whose function cannot be imported. The scheduler is never started,
because a start writes the jobs of the code to the store. Only SQLAlchemy, Django and memory stores are supported.

Note [Ids of a process]
A job without an id gets a random one. A store keeps it, but for a job in code each process generates another one. Such
a job is named after its function, as a line of a crontab after its command: see Note [Equal names].
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from .crons import joined, spelled
from .entry import Entry, Options, Refused, UnreadableSource, guarded, load, model_of, once, seconds, zone_name

DIFFERS = (
    "misfire_grace_time: here a point may always be late by the grace, by default 60 s or half the gap; "
    "catch_up_window has the rest.",
    "A fixed time that does not exist runs at the end of the gap here (dst_gap), 02:30 at 03:00; APScheduler's an hour "
    "after itself, at 03:30. One that comes twice runs both times there, once here (dst_overlap).",
)
_PLACES = {"second": 0, "minute": 1, "hour": 2, "day": 3, "month": 4, "day_of_week": 5}
_RANDOM = re.compile("[0-9a-f]{32}")


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    scheduler = load(source, "an APScheduler scheduler")
    if not hasattr(scheduler, "_pending_jobs"):
        raise UnreadableSource(f"{source} is no scheduler of APScheduler 3, but a {type(scheduler).__name__}.")
    jobs = list(_pending(scheduler))
    for alias, store in scheduler._jobstores.items():
        jobs += _stored(alias, store)
    for job_id, job, kept in jobs:
        if isinstance(job, str):
            yield Entry(job_id, refused=job)
            continue
        path = str(job.func_ref or "").replace(":", ".")
        own = _RANDOM.fullmatch(job_id) is None
        name = job_id if own else f"{job.name or path} {job_id[:8]}" if kept else job.name or path
        entry = guarded(name, path, partial(_entry, name, path, job))
        yield entry if own or kept else replace(entry, numbered=True)


def _pending(scheduler: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield (id, job with the scheduler's defaults, whether the id is stored) for jobs in code.

    See Note [Ids of a process].
    """
    for job, _alias, _replace in scheduler._pending_jobs:
        defaults = dict(scheduler._job_defaults)
        for name, value in defaults.items():
            if not hasattr(job, name):
                setattr(job, name, value)
        yield job.id, job, False


def _stored(alias: str, store: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the same for each job in a store; the error in place of a job. See Note [Pickled stores]."""
    if not hasattr(store, "_reconstitute_job"):
        yield from ((job.id, job, False) for job in store.get_all_jobs())
        return
    for job_id, state in _states(alias, store):
        try:
            yield job_id, store._reconstitute_job(state), True
        except Exception as error:  # unpickling may raise anything
            yield job_id, f"APScheduler itself cannot restore it: {type(error).__name__}: {error}", True


def _states(alias: str, store: Any) -> list[tuple[str, Any]]:
    if hasattr(store, "jobs_t"):
        table = store.jobs_t
        with store.engine.connect() as connection:
            return [(row.id, row.job_state) for row in connection.execute(table.select().order_by(table.c.id))]
    if type(store).__name__ == "DjangoJobStore":
        rows = model_of("django_apscheduler", "DjangoJob")._default_manager.order_by("pk")
        return list(rows.values_list("id", "job_state"))
    raise UnreadableSource(
        f"The job store {alias!r} ({type(store).__name__}) is not read here: give a function that returns a scheduler "
        "with these jobs in memory."
    )


def _entry(name: str, path: str, job: Any) -> Entry:
    grace, coalesce = getattr(job, "misfire_grace_time", 1), getattr(job, "coalesce", True)
    values: dict[str, Any] = {
        "overlap": "skip" if getattr(job, "max_instances", 1) == 1 else "allow",
        "missed": "latest" if coalesce else "all",
        "catch_up_window": None if grace is None else seconds(grace),
    }
    if hasattr(job, "next_run_time") and job.next_run_time is None:
        values["enabled"] = False
    if not path:
        raise Refused("It calls a function that has no name, such as a lambda.")
    when, phase, notes = _when(job.trigger)
    return Entry(name, path, job.args or (), job.kwargs or {}, {**values, **when}, phase, tuple(notes))


def _when(trigger: Any) -> tuple[dict[str, Any], Any, list[str]]:
    kind = type(trigger).__name__
    if kind == "DateTrigger":
        return once(trigger.run_date), None, []
    notes = []
    values: dict[str, Any] = {}
    if jitter := getattr(trigger, "jitter", None):
        values["jitter"] = timedelta(seconds=float(jitter))
        notes.append("jitter is the same at each run of a point here, drawn from the schedule's name, and never early")
    for name, column in (("start_date", "start_at"), ("end_date", "end_at")):
        if bound := getattr(trigger, name, None):
            values[column] = bound
    if kind == "IntervalTrigger":
        start = values.pop("start_at")
        return {**values, "kind": "every", "every": trigger.interval}, start, notes
    if kind != "CronTrigger":
        raise Refused(f"A trigger of the class {kind} is not known here.")
    return {**values, "kind": "cron", "cron": _cron(trigger), "timezone": zone_name(trigger.timezone)}, None, notes


def _cron(trigger: Any) -> str:
    fields = {field.name: field for field in trigger.fields}
    for name in ("year", "week"):
        if str(fields[name]) != "*":
            raise Refused(f"It names a {name} ({fields[name]}), which a cron expression has not.")
    words = [_field(fields[name]) for name in _PLACES]
    place = list(_PLACES).index("day")
    positions = [str(one) for one in fields["day"].expressions if " " in str(one)]
    if positions:
        if len(positions) < len(fields["day"].expressions) or words[5] != "*":
            raise Refused(f"Its day {fields['day']} beside other days has no cron expression here.")
        words[place], words[5] = "*", ",".join(map(_position, positions))
    if words[0] == "0":
        words.pop(0)
    return joined(words, both=True)


def _position(text: str) -> str:
    which, weekday = text.split()
    return f"{weekday.upper()}#{'L' if which == 'last' else which[0]}"


def _field(field: Any) -> str:
    """Return one field in our dialect. In APScheduler Monday is 0, and steps continue to the end of the month."""
    items = []
    for expression in field.expressions:
        text = str(expression)
        if text == "last":
            items.append("L")
        elif field.name == "day_of_week":
            items.append(_weekdays(expression))
        elif " " in text:
            return "*"
        else:
            items.append(text)
    return ",".join(items)


def _weekdays(expression: Any) -> str:
    step = expression.step or 1
    first = getattr(expression, "first", 0)
    last = getattr(expression, "last", None)
    last = (first if hasattr(expression, "last") and not expression.step else 6) if last is None else last
    return spelled(5, [(number + 1) % 7 for number in range(first, last + 1, step)])
