"""django-celery-beat: its tables, read by its own models."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from .celery_beat import CLEANUP, DIFFERS, NOT_NEEDED, enqueue_options, recurrence
from .entry import Entry, Options, Refused, guarded, model_of, once, zone_name

__all__ = ["DIFFERS", "read"]


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    rows = model_of("django_celery_beat", "PeriodicTask")._default_manager.order_by("pk")
    for row in rows.select_related("interval", "crontab", "solar", "clocked"):
        yield guarded(row.name, row.task, partial(_entry, row))


def _entry(row: Any) -> Entry:
    if row.task == CLEANUP:
        return Entry(row.name, row.task, skipped=NOT_NEEDED)
    values, notes = _when(row)
    told: dict[str, Any] = {name: getattr(row, name) for name in ("queue", "exchange", "routing_key", "priority")}
    told |= {"expires": row.expires or row.expire_seconds, "headers": _read(row.headers, "{}", "headers")}
    more, more_notes = enqueue_options(told)
    values |= {**more, "overlap": "allow", "enabled": row.enabled, "description": row.description}
    if row.one_off and values["kind"] != "once":
        values["max_runs"] = 1
    args, kwargs = _read(row.args, "[]", "args"), _read(row.kwargs, "{}", "kwargs")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise Refused("Its args are no list, or its kwargs no object.")
    if row.start_time and values["kind"] != "once":
        values["start_at"] = row.start_time
        if values["kind"] == "cron" and not row.last_run_at:
            notes.append("beat runs it once at its start, whatever the time; here its first time is after that")
    return Entry(row.name, row.task, args, kwargs, values, _phase(row, values.get("every")), (*notes, *more_notes))


def _phase(row: Any, every: timedelta | None) -> datetime | None:
    """Return a known point of an interval; None if there is none, or if the start is the first point."""
    if every is None or (row.start_time and not row.last_run_at):
        return None
    begin: datetime = row.last_run_at or row.date_changed
    return begin + every


def _when(row: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the recurrence. A solar row's own schedule is not read, because that needs another package."""
    if row.solar_id:
        raise Refused(f"A time of the sun ({row.solar.event}) moves every day: no schedule here says that.")
    if row.clocked_id:
        return once(row.clocked.clocked_time), []
    if row.interval_id:
        return recurrence(timedelta(**{row.interval.period: row.interval.every}), "UTC")
    if not row.crontab_id:
        raise Refused("It has neither an interval nor a crontab.")
    return recurrence(row.crontab.schedule, zone_name(row.crontab.timezone))


def _read(text: str | None, empty: str, name: str) -> Any:
    try:
        return json.loads(text or empty)
    except ValueError as error:
        raise Refused(f"Its {name} are no JSON: {error}") from None
