"""procrastinate: periodic tasks registered in code by `@app.periodic`."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from .crons import from_croniter
from .entry import Entry, Options, UnreadableSource, guarded, load

DIFFERS = (
    "Cron expressions are in UTC, and so they are here: set the schedule's time zone afterwards, if you want another.",
    "The task is not passed a timestamp: one with takes_context=True has context.due_at.",
    "A worker that starts runs the last point, if it is no older than 10 minutes: so do missed 'latest' and "
    "catch_up_window.",
    "Jobs of a periodic task run side by side: so does overlap 'allow', which is set here, but for locks.",
)
_MOST_DELAY = timedelta(minutes=10)


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    app = load(source, "the procrastinate App")
    registry = getattr(app, "periodic_registry", None)
    if registry is None:
        raise UnreadableSource(f"{source} is no procrastinate App, but a {type(app).__name__}.")
    if hasattr(app, "perform_import_paths"):
        app.perform_import_paths()
    for (path, key), periodic in registry.periodic_tasks.items():
        name = f"{path} {key}" if key else path
        yield guarded(name, path, partial(_entry, name, path, periodic))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _entry(name: str, path: str, periodic: Any) -> Entry:
    options = _given(periodic.configure_kwargs)
    task, notes = periodic.task, []
    values: dict[str, Any] = {"kind": "cron", "cron": from_croniter(periodic.cron), "timezone": "UTC"}
    values |= {"overlap": "allow", "missed": "latest", "catch_up_window": _MOST_DELAY}
    values["queue"] = options.pop("queue", None) or task.queue
    kwargs = dict(options.pop("task_kwargs", {}))
    kwargs.pop("timestamp", None)
    locks = {name: options.pop(name, None) or getattr(task, name) for name in ("lock", "queueing_lock")}
    if any(locks.values()):
        values["overlap"] = "queue_one" if locks["queueing_lock"] else "queue_all"  # jobs wait for a lock
        notes.append(f"its lock becomes overlap {values['overlap']!r}: it keeps this schedule from itself, not others")
    if priority := options.pop("priority", None) or task.priority:
        notes.append(f"priority {priority} is left out: what is due first starts first")
    if getattr(task, "retry_strategy", None) is not None:
        notes.append("its retries are left out: set max_attempts and backoff")
    if options:
        notes.append(f"left out: {', '.join(sorted(options))}")
    return Entry(name, path, kwargs=kwargs, values=values, notes=tuple(notes))
