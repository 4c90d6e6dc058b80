"""rq-scheduler: its jobs in Redis, read by its own Scheduler. RQ itself unpickles them, as in a worker."""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from .crons import from_crontab_package
from .entry import Entry, Options, Refused, UnreadableSource, aware, guarded, load, local_zone, once, seconds

DIFFERS = (
    "rq-scheduler enqueues a job although the last one is still busy: so does overlap 'allow', which is set here.",
    "It counts an interval from when it looked, up to --interval (60 s) late, so that its points drift; here they do "
    "not.",
    "It runs at once, and once, what was missed; so does missed 'latest' here.",
    "A job without a timeout of its own has RQ's, mostly 180 s; here it has none.",
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    scheduler = load(source, "an rq_scheduler.Scheduler")
    if not hasattr(scheduler, "get_jobs"):
        raise UnreadableSource(f"{source} is no rq_scheduler.Scheduler, but a {type(scheduler).__name__}.")
    for job, at in scheduler.get_jobs(with_times=True):
        name = job.id
        try:
            path = str(job.func_name)
        except Exception as error:  # the job's serializer may raise anything
            yield Entry(name, refused=f"RQ itself cannot read it: {error}")
            continue
        if _UUID.fullmatch(job.id):
            name = f"{path} {job.id[:8]}"
        yield guarded(name, path, partial(_entry, name, path, job, at, options))


def _entry(name: str, path: str, job: Any, at: Any, options: Options) -> Entry:
    meta, phase = job.meta or {}, None
    notes: list[str] = []
    values: dict[str, Any] = {"queue": job.origin, "overlap": "allow"}
    if job.timeout is not None and job.timeout != -1:
        values["timeout"] = seconds(job.timeout)
    if cron := meta.get("cron_string"):
        zone, notes = local_zone(options, "rq-scheduler")
        values |= {"kind": "cron", "cron": from_crontab_package(cron), "timezone": zone}
    elif interval := meta.get("interval"):
        values |= {"kind": "every", "every": timedelta(seconds=int(interval))}
        phase = aware(at)
    else:
        values |= once(at)
    if repeat := meta.get("repeat"):
        values["max_runs"] = int(repeat)
    if getattr(job, "instance", None) is not None:
        raise Refused("It calls a method of an object, which is no task.")
    lost = [option for option in ("_success_callback_name", "_failure_callback_name") if getattr(job, option, None)]
    if lost or getattr(job, "_dependency_ids", None):
        notes.append("left out: its callbacks and dependencies")
    return Entry(name, path, job.args or (), job.kwargs or {}, values, phase, tuple(notes))
