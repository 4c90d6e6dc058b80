"""Celery: its `beat_schedule`, and the meaning of its schedule objects, which are recognised by their attributes."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from .crons import joined, spelled
from .entry import Entry, Options, Refused, UnreadableSource, aware, guarded, load, once, seconds, zone_name

DIFFERS = (
    "Celery starts a task although the last one is still busy: so does overlap 'allow', which is set here.",
    "While no worker is there, beat goes on enqueueing, and all of it runs afterwards; here the newest one (missed).",
    "Beat runs at once what it missed while it was down; so does missed 'latest' here.",
    "A fixed time that does not exist runs at the end of the gap here (dst_gap), 02:30 at 03:00; Celery's an hour "
    "after itself, at 03:30. One that comes twice runs once in both.",
)
#: Celery's own task, which only a result backend of Celery needs.
CLEANUP = "celery.backend_cleanup"
NOT_NEEDED = "It cleans Celery's result backend, which is not needed here."
_DAY, _HOUR, _MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    found = load(source, "the Celery app, or to a dict such as its beat_schedule")
    notes: tuple[str, ...] = ()
    if isinstance(found, Mapping):
        schedule, zone = found, options.timezone or "UTC"
        if not options.timezone:
            notes = ("read in UTC, Celery's default; --timezone names another",)
    elif hasattr(found, "conf"):
        if hasattr(found, "finalize"):
            found.finalize()
        schedule, zone = found.conf.beat_schedule or {}, options.timezone or zone_name(found.timezone)
    else:
        raise UnreadableSource(f"{source} is no Celery app and no dict, but a {type(found).__name__}.")
    for name, told in schedule.items():
        task = str(told.get("task", "")) if isinstance(told, Mapping) else ""
        yield guarded(str(name), task, partial(_entry, str(name), told, zone, notes))


def _entry(name: str, told: Any, zone: str, zone_notes: tuple[str, ...]) -> Entry:
    if not isinstance(told, Mapping) or "task" not in told or "schedule" not in told:
        raise Refused("An entry is a dict with 'task' and 'schedule'.")
    task = str(told["task"])
    if task == CLEANUP:
        return Entry(name, task, skipped=NOT_NEEDED)
    values, notes = recurrence(told["schedule"], zone, relative=bool(told.get("relative")))
    more, more_notes = enqueue_options(dict(told.get("options") or {}))
    if values["kind"] == "every":
        notes.append("the interval begins anew here: beat keeps its last run in a file of its own")
    else:
        notes += zone_notes
    args, kwargs = told.get("args") or (), told.get("kwargs") or {}
    return Entry(name, task, args, kwargs, {**values, **more, "overlap": "allow"}, notes=(*notes, *more_notes))


def recurrence(schedule: Any, zone: str, *, relative: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the recurrence of a Celery schedule, and notes on differences.

    Raises:
        Refused: It has no equivalent here, such as a solar time.
    """
    if isinstance(schedule, int | float | timedelta):
        return _interval(seconds(schedule), zone, relative=relative)
    if hasattr(schedule, "day_of_month"):
        own = vars(schedule).get("tz")
        return {"kind": "cron", "cron": _cron(schedule), "timezone": zone_name(own) if own else zone}, []
    if hasattr(schedule, "clocked_time"):
        return once(schedule.clocked_time), []
    if hasattr(schedule, "event") and hasattr(schedule, "lat"):
        raise Refused(f"A time of the sun ({schedule.event}) moves every day: no schedule here says that.")
    if hasattr(schedule, "run_every"):
        return _interval(schedule.run_every, zone, relative=relative or schedule.relative)
    raise Refused(f"A schedule of the class {type(schedule).__name__} is not known here.")


def _interval(every: timedelta, zone: str, *, relative: bool) -> tuple[dict[str, Any], list[str]]:
    if every <= timedelta(0):
        raise Refused(f"An interval of {every} is none: give it a length.")
    if not relative:
        return {"kind": "every", "every": every}, []
    crons = {_DAY: "0 0 * * *", _HOUR: "0 * * * *", _MINUTE: "* * * * *"}
    if every in crons:
        return {"kind": "cron", "cron": crons[every], "timezone": zone}, []
    unit = "days" if every >= _DAY else "hours" if every >= _HOUR else "minutes"
    return {"kind": "every", "every": every}, [f"relative: Celery rounds to whole {unit}, this interval does not"]


def _cron(schedule: Any) -> str:
    places = ((1, "minute"), (2, "hour"), (3, "day_of_month"), (4, "month_of_year"), (5, "day_of_week"))
    fields = [spelled(place, getattr(schedule, name), getattr(schedule, f"_orig_{name}", "")) for place, name in places]
    return joined(fields, both=True)


def enqueue_options(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a schedule's values for options of `apply_async`, and notes on options that are lost."""
    values: dict[str, Any] = {}
    notes = []
    if queue := options.pop("queue", None):
        values["queue"] = getattr(queue, "name", queue)
    expires = options.pop("expires", None)
    if isinstance(expires, datetime):
        values["end_at"] = aware(expires)
    elif expires is not None:
        values |= {"grace": seconds(expires), "missed": "skip"}
        notes.append(f"expires after {seconds(expires)}: a point that is later is skipped (grace, missed)")
    if priority := options.pop("priority", None):
        notes.append(f"priority {priority} is left out: what is due first starts first")
    if limit := options.pop("time_limit", None) or options.pop("soft_time_limit", None):
        values["timeout"] = seconds(limit)
    if lost := sorted(name for name, value in options.items() if value not in (None, {}, ())):
        notes.append(f"left out: {', '.join(lost)}")
    return values, notes
