"""Huey: periodic tasks registered in code, each with a function that returns whether it runs in a minute."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from inspect import getclosurevars, isfunction
from typing import Any

from .crons import joined, spelled
from .entry import Entry, Options, Refused, UnreadableSource, guarded, load, local_zone, seconds

DIFFERS = (
    "Huey enqueues a task although the last one is still busy: so does overlap 'allow', which is set here.",
    "It asks once a minute and makes up for nothing; here the newest missed point runs (missed), 'skip' runs none.",
    "In local time, a fixed time that does not exist does not run there, at the end of the gap here (dst_gap); one "
    "that comes twice runs both times there, once here (dst_overlap).",
    "A function that is a periodic task there is called without arguments; so it is here.",
)


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    huey = load(source, "the Huey instance")
    registry = getattr(huey, "_registry", None)
    if registry is None or not hasattr(registry, "periodic_tasks"):
        raise UnreadableSource(f"{source} is no Huey instance, but a {type(huey).__name__}.")
    for task in registry.periodic_tasks:
        path = f"{type(task).__module__}.{type(task).__name__}"
        yield guarded(path, path, partial(_entry, path, task, huey, options))


def _entry(path: str, task: Any, huey: Any, options: Options) -> Entry:
    zone, notes = (options.timezone or "UTC", []) if huey.utc else local_zone(options, "Huey")
    values: dict[str, Any] = {"kind": "cron", "cron": _cron(task), "timezone": zone, "overlap": "allow"}
    if retries := getattr(task, "retries", 0):
        values |= {"max_attempts": 1 + retries, "backoff": timedelta(seconds=task.retry_delay or 0)}
        notes.append("the delay doubles at each attempt here (backoff)")
    if timeout := getattr(task, "timeout", None):
        values["timeout"] = seconds(timeout)
    expires = getattr(task, "expires", None)
    if isinstance(expires, datetime):
        raise Refused("It expires at a fixed time: its schedule would end then. Make one by hand, with an end.")
    if expires:
        values |= {"grace": seconds(expires), "missed": "skip"}
    if priority := getattr(task, "priority", None):
        notes.append(f"priority {priority} is left out: what is due first starts first")
    if getattr(task, "context", False):
        notes.append("it is passed its task by Huey: @task(takes_context=True) passes a context instead")
    return Entry(path, path, values=values, notes=tuple(notes))


def _cron(task: Any) -> str:
    """Return the expression of `crontab()`'s closure: month, day, weekday, hour and minute, all of which must match."""
    check = getclosurevars(type(task).validate_datetime).nonlocals.get("validate_datetime")
    noted = getclosurevars(check).nonlocals.get("cron_settings") if isfunction(check) else None
    if not noted or len(noted) != 5:
        raise Refused("A function of its own says when, and not crontab(): make a schedule by hand.")
    months, days, weekdays, hours, minutes = noted
    fields = [spelled(1, minutes), spelled(2, hours), spelled(3, days), spelled(4, months), spelled(5, weekdays)]
    return joined(fields, both=True)
