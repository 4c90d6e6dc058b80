"""APScheduler 3: the jobs of a scheduler object and of its stores.

Note [Pickles stay closed]
Stores hold pickles, which only APScheduler's own store opens, job by job: `get_all_jobs` deletes jobs whose function
cannot be imported. The scheduler is never started, because a start writes the jobs of the code to the store.

Note [A job with a random id is named after its function]
A job without an id gets a random one. A store keeps it, but for a job in code each process generates another one. Such
a job is named after its function: see Note [Equal entries keep their schedules].
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from .crons import join_fields, spell_field
from .entry import (
    ImportedEntry,
    ReadOptions,
    Refused,
    UnreadableSource,
    load,
    name_zone,
    read_entry,
    read_rows,
    to_timedelta,
)

_FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
_RANDOM = re.compile("[0-9a-f]{32}")


def read(source: str, _options: ReadOptions) -> Iterator[ImportedEntry]:
    """Yield the jobs of a scheduler. See Note [A job with a random id is named after its function]."""
    scheduler = load(source, "scheduler of APScheduler 3", "_pending_jobs")
    jobs = []
    for job, _alias, _replace in scheduler._pending_jobs:
        for name, value in scheduler._job_defaults.items():
            if not hasattr(job, name):
                setattr(job, name, value)
        jobs.append((job.id, job, False))
    for alias, store in scheduler._jobstores.items():
        jobs += _read_store(alias, store)
    for job_id, job, is_stored in jobs:
        if isinstance(job, str):
            yield ImportedEntry(job_id, refused=job)
            continue
        path, is_random = str(job.func_ref or "").replace(":", "."), _RANDOM.fullmatch(job_id) is not None
        name = job.name or path if is_random else job_id
        entry = read_entry(f"{name} {job_id[:8]}" if is_random and is_stored else name, path, _fill, job)
        entry.numbered = is_random and not is_stored
        yield entry


def _read_store(alias: str, store: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield (id, job, whether the id is stored); an error in place of a job. See Note [Pickles stay closed]."""
    if hasattr(store, "jobs_t"):
        with store.engine.connect() as connection:
            query = store.jobs_t.select().order_by(store.jobs_t.c.id)
            states = [(row.id, row.job_state) for row in connection.execute(query)]
    elif type(store).__name__ == "DjangoJobStore":
        states = read_rows("django_apscheduler", "DjangoJob").values_list("id", "job_state")
    elif hasattr(store, "_reconstitute_job"):
        raise UnreadableSource(
            f"The job store {alias!r} ({type(store).__name__}) is not read here: give a function that returns a "
            "scheduler with these jobs in memory."
        )
    else:
        yield from ((job.id, job, False) for job in store.get_all_jobs())
        return
    for job_id, state in states:
        try:
            yield job_id, store._reconstitute_job(state), True
        except Exception as error:  # unpickling may raise anything
            yield job_id, f"APScheduler itself cannot restore it: {type(error).__name__}: {error}", True


def _fill(entry: ImportedEntry, job: Any) -> None:
    if not entry.task:
        raise Refused("It calls a function that has no name, such as a lambda.")
    entry.args, entry.kwargs = job.args or (), job.kwargs or {}
    _set_trigger(entry, job.trigger)
    grace = getattr(job, "misfire_grace_time", 1)
    entry.values |= {
        "overlap": "skip" if getattr(job, "max_instances", 1) == 1 else "allow",
        "missed": "latest" if getattr(job, "coalesce", True) else "all",
        "catch_up_window": None if grace is None else to_timedelta(grace),
        "enabled": not hasattr(job, "next_run_time") or job.next_run_time is not None,
    }


def _set_trigger(entry: ImportedEntry, trigger: Any) -> None:
    kind = type(trigger).__name__
    if kind == "DateTrigger":
        entry.set_once(trigger.run_date)
        return
    if jitter := getattr(trigger, "jitter", None):
        entry.values["jitter"] = timedelta(seconds=float(jitter))
    entry.values["end_at"] = getattr(trigger, "end_date", None)
    if kind == "IntervalTrigger":
        entry.set_every(trigger.interval, trigger.start_date)
    elif kind == "CronTrigger":
        entry.set_cron(_join_trigger(trigger), name_zone(trigger.timezone))
        entry.values["start_at"] = trigger.start_date
    else:
        raise Refused(f"A trigger of the class {kind} is not known here.")


def _join_trigger(trigger: Any) -> str:
    fields = {field.name: field for field in trigger.fields}
    for name in ("year", "week"):
        if str(fields[name]) != "*":
            raise Refused(f"It names a {name} ({fields[name]}), which a cron expression does not have.")
    words = {name: ",".join(map(_spell_item, fields[name].expressions)) for name in _FIELDS}
    # Monday is 0 there. A field is queried for each day of a week that begins with Monday.
    week = [datetime(2024, 1, day, tzinfo=UTC) for day in range(1, 8)]
    matching = [day.day % 7 for day in week if fields["day_of_week"].get_next_value(day) == day.weekday()]
    words["day_of_week"] = spell_field(5, matching)
    if "#" in words["day"]:
        if words["day"].count("#") < len(fields["day"].expressions) or words["day_of_week"] != "*":
            raise Refused(f"Its day {fields['day']} together with other days cannot be a cron expression here.")
        words |= {"day": "*", "day_of_week": words["day"]}
    return join_fields(list(words.values())[words["second"] == "0" :], both=True)


def _spell_item(expression: Any) -> str:
    text = str(expression)
    if " " not in text:
        return "L" if text == "last" else text
    which, weekday = text.split()  # such as "3rd fri"
    return f"{weekday.upper()}#{'L' if which == 'last' else which[0]}"
