"""Celery: its `beat_schedule`, and the tables of django-celery-beat. Attributes identify schedule objects."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from .crons import join_fields, spell_field
from .entry import ImportedEntry, ReadOptions, Refused, load, make_aware, name_zone, read_entry, read_rows, to_timedelta

#: Celery's own task, which only a result backend of Celery needs.
CLEANUP = "celery.backend_cleanup"
_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def read_app(source: str, options: ReadOptions) -> Iterator[ImportedEntry]:
    found, notes = load(source, "Celery app or dict", "conf", "items"), []
    if isinstance(found, Mapping):
        schedule, zone = found, options.timezone or "UTC"
        if not options.timezone:
            notes.append("read in UTC, Celery's default; --timezone names another")
    else:
        found.finalize()
        schedule, zone = found.conf.beat_schedule or {}, options.timezone or name_zone(found.timezone)
    for name, values in schedule.items():
        task = str(values.get("task", "")) if isinstance(values, Mapping) else ""
        yield read_entry(str(name), task, _fill_from_dict, values, zone, notes)


def _fill_from_dict(entry: ImportedEntry, values: Any, zone: str, notes: list[str]) -> None:
    if not isinstance(values, Mapping) or "task" not in values or "schedule" not in values:
        raise Refused("An entry is a dict with 'task' and 'schedule'.")
    _set_schedule(entry, values["schedule"], zone, relative=bool(values.get("relative")))
    if entry.values["kind"] == "cron":
        entry.notes += notes
    _set_options(entry, dict(values.get("options") or {}))
    entry.args, entry.kwargs = values.get("args") or (), values.get("kwargs") or {}


def read_tables(_source: str, _options: ReadOptions) -> Iterator[ImportedEntry]:
    rows = read_rows("django_celery_beat", "PeriodicTask")
    for row in rows.select_related("interval", "crontab", "solar", "clocked"):
        yield read_entry(row.name, row.task, _fill_from_row, row)


def _fill_from_row(entry: ImportedEntry, row: Any) -> None:
    if row.solar_id:  # its schedule needs another package
        raise Refused(f"A solar schedule ({row.solar.event}) moves every day, which no recurrence here can express.")
    if row.clocked_id:
        entry.set_once(row.clocked.clocked_time)
    elif row.interval_id:
        _set_schedule(entry, timedelta(**{row.interval.period: row.interval.every}), "UTC")
        if row.last_run_at or not row.start_time:
            entry.phase = (row.last_run_at or row.date_changed) + entry.values["every"]
    else:
        _set_schedule(entry, row.crontab.schedule, name_zone(row.crontab.timezone))
    options = {name: getattr(row, name) for name in ("queue", "exchange", "routing_key", "priority")}
    options |= {"expires": row.expires or row.expire_seconds, "headers": json.loads(row.headers or "{}")}
    _set_options(entry, options)
    entry.values |= {"enabled": row.enabled, "description": row.description}
    entry.args, entry.kwargs = json.loads(row.args or "[]"), json.loads(row.kwargs or "{}")
    if not row.clocked_id:
        entry.values |= {"max_runs": 1 if row.one_off else None, "start_at": row.start_time}


def _set_schedule(entry: ImportedEntry, schedule: Any, zone: str, *, relative: bool = False) -> None:
    if entry.task == CLEANUP:
        entry.skipped = "It cleans Celery's result backend, which is not needed here."
    if isinstance(schedule, int | float | timedelta):
        every = to_timedelta(schedule)
    elif hasattr(schedule, "day_of_month"):
        texts = [
            spell_field(place, getattr(schedule, name), getattr(schedule, f"_orig_{name}", ""))
            for place, name in enumerate(_FIELDS, 1)
        ]
        own = vars(schedule).get("tz")
        entry.set_cron(join_fields(texts, both=True), name_zone(own) if own else zone)
        return
    elif hasattr(schedule, "event") and hasattr(schedule, "lat"):
        raise Refused(f"A solar schedule ({schedule.event}) moves every day, which no recurrence here can express.")
    elif hasattr(schedule, "run_every"):
        every, relative = schedule.run_every, relative or schedule.relative
    else:
        raise Refused(f"A schedule of the class {type(schedule).__name__} is not known here.")
    if every <= timedelta(0):
        raise Refused(f"An interval of {every} has no length: give it one.")
    entry.set_every(every)
    if relative:
        entry.notes.append("relative: Celery rounds to whole units of its clock, this interval does not")


def _set_options(entry: ImportedEntry, options: dict[str, Any]) -> None:
    """Set the values for options of `apply_async`, and note options that are lost."""
    entry.values["overlap"] = "allow"
    if queue := options.pop("queue", None):
        entry.values["queue"] = getattr(queue, "name", queue)
    expires = options.pop("expires", None)
    if isinstance(expires, datetime):
        entry.values["end_at"] = make_aware(expires)
    elif expires is not None:
        entry.set_expiry(expires)
    if limit := options.pop("time_limit", None) or options.pop("soft_time_limit", None):
        entry.values["timeout"] = to_timedelta(limit)
    entry.leave_out(options)
