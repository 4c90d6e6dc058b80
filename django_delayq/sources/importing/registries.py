"""Huey, procrastinate and rq-scheduler: tasks registered in code, and jobs in Redis, which RQ itself unpickles."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from inspect import getclosurevars, isfunction
from typing import Any

from .crons import convert_croniter, convert_crontab_package, join_fields, spell_field
from .entry import ImportedEntry, ReadOptions, Refused, find_local_zone, load, make_aware, read_entry, to_timedelta

#: Maximum delay of procrastinate's periodic tasks: its worker runs the last point at its start.
_MOST_DELAY = timedelta(minutes=10)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def read_huey(source: str, options: ReadOptions) -> Iterator[ImportedEntry]:
    huey = load(source, "Huey instance", "_registry")
    for task in huey._registry.periodic_tasks:
        path = f"{type(task).__module__}.{type(task).__name__}"
        yield read_entry(path, path, _fill_from_huey, task, huey, options)


def _fill_from_huey(entry: ImportedEntry, task: Any, huey: Any, options: ReadOptions) -> None:
    # `crontab()` returns a closure with sets of numbers: month, day, weekday, hour and minute.
    check = getclosurevars(type(task).validate_datetime).nonlocals.get("validate_datetime")
    numbers = getclosurevars(check).nonlocals.get("cron_settings") if isfunction(check) else None
    if not numbers or len(numbers) != 5:
        raise Refused("A function decides when it runs, not crontab(). Create the schedule by hand.")
    months, days, weekdays, hours, minutes = numbers
    fields = [spell_field(place, each) for place, each in enumerate((minutes, hours, days, months, weekdays), 1)]
    zone = options.timezone or "UTC" if huey.utc else find_local_zone(entry, options, "Huey")
    entry.set_cron(join_fields(fields, both=True), zone)
    entry.values["overlap"] = "allow"
    if task.retries:
        entry.values |= {"max_attempts": 1 + task.retries, "backoff": timedelta(seconds=task.retry_delay or 0)}
        entry.notes.append("the delay doubles at each attempt here (backoff)")
    if timeout := getattr(task, "timeout", None):
        entry.values["timeout"] = to_timedelta(timeout)
    if isinstance(task.expires, datetime):
        raise Refused("It expires at a fixed time: its schedule would end then. Make one by hand, with an end.")
    if task.expires:
        entry.set_expiry(task.expires)
    entry.leave_out({"priority": task.priority, "context": getattr(task, "context", False)})


def read_procrastinate(source: str, _options: ReadOptions) -> Iterator[ImportedEntry]:
    app = load(source, "procrastinate App", "periodic_registry")
    app.perform_import_paths()
    for (path, key), periodic in app.periodic_registry.periodic_tasks.items():
        yield read_entry(f"{path} {key}" if key else path, path, _fill_from_procrastinate, periodic)


def _fill_from_procrastinate(entry: ImportedEntry, periodic: Any) -> None:
    task, options = periodic.task, dict(periodic.configure_kwargs)
    entry.set_cron(convert_croniter(periodic.cron), "UTC")
    entry.values |= {
        "overlap": "allow",
        "catch_up_window": _MOST_DELAY,
        "queue": options.pop("queue", None) or task.queue,
    }
    entry.kwargs = dict(options.pop("task_kwargs", {}))
    entry.kwargs.pop("timestamp", None)
    for lock, overlap in (("lock", "queue_all"), ("queueing_lock", "queue_one")):
        if options.pop(lock, None) or getattr(task, lock):  # jobs wait for a lock
            entry.values["overlap"] = overlap
            entry.notes.append(f"its {lock} becomes overlap {overlap!r}, which concerns only runs of this schedule")
    options["priority"] = options.get("priority") or task.priority
    entry.leave_out({**options, "retry": task.retry_strategy})


def read_rq_scheduler(source: str, options: ReadOptions) -> Iterator[ImportedEntry]:
    scheduler = load(source, "rq_scheduler.Scheduler", "get_jobs")
    for job, at in scheduler.get_jobs(with_times=True):
        try:
            path = str(job.func_name)
        except Exception as error:  # the job's serializer may raise anything
            yield ImportedEntry(job.id, refused=f"RQ itself cannot read it: {error}")
            continue
        name = f"{path} {job.id[:8]}" if _UUID.fullmatch(job.id) else job.id
        yield read_entry(name, path, _fill_from_rq_scheduler, job, at, options)


def _fill_from_rq_scheduler(entry: ImportedEntry, job: Any, at: datetime, options: ReadOptions) -> None:
    if cron := job.meta.get("cron_string"):
        entry.set_cron(convert_crontab_package(cron), find_local_zone(entry, options, "rq-scheduler"))
    elif interval := job.meta.get("interval"):
        entry.set_every(timedelta(seconds=int(interval)), make_aware(at))
    else:
        entry.set_once(at)
    if job.instance is not None:
        raise Refused("It calls a method of an object, which is not a task.")
    entry.args, entry.kwargs = job.args or (), job.kwargs or {}
    entry.values |= {"queue": job.origin, "overlap": "allow", "max_runs": job.meta.get("repeat")}
    if job.timeout is not None and job.timeout != -1:
        entry.values["timeout"] = to_timedelta(job.timeout)
    callbacks = {f"on_{end}": getattr(job, f"_{end}_callback_name", None) for end in ("success", "failure")}
    entry.leave_out({**callbacks, "depends_on": getattr(job, "_dependency_ids", None)})
