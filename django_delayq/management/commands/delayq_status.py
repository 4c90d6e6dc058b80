"""`manage.py delayq_status`: report the state of workers, queues and schedules, or explain one schedule or job."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error

from django_delayq import conf, ledger
from django_delayq.calls.validators import is_storable
from django_delayq.index.counters import LATENCY, compute_percentile, select_outcomes, sum_by_queue
from django_delayq.models import Control, Schedule
from django_delayq.monitoring import alerts, explain
from django_delayq.monitoring.database_side import MOST_COUNTED, Named
from django_delayq.monitoring.minutes import sum_rows
from django_delayq.monitoring.observing import take_snapshot_within
from django_delayq.monitoring.problems import format_span, get_exit_status, list_remarks
from django_delayq.monitoring.redis_side import QueueView
from django_delayq.monitoring.snapshot import Snapshot
from django_delayq.recurrence.point import utcnow
from django_delayq.recurrence.zone import get_zone
from django_delayq.text import escape_text, redact_text

#: Maximum of `--next`.
MOST_SHOWN = 1000
NOT_COUNTED = "not counted in time"
PRUNED = ("at", "rows", "left", "behind_seconds", "finished")


class Command(BaseCommand):
    """Reads Redis and the database. Writes nothing except, with `--alert`, states of alerts."""

    help = (
        "Report workers, queues, schedules and jobs, and what is wrong with them. With NAME or --job: explain why a "
        "schedule or a job did or did not run. Exit status: 0 all is well; 1 something is wrong; 2 unknown, because "
        "Redis, the database or the settings do not work."
    )
    requires_system_checks = []  # a probe must answer even if another part of the project is misconfigured

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("schedule", nargs="?", metavar="NAME", help="Explain this schedule: its name or id.")
        parser.add_argument("--job", metavar="ID", help="Explain this job: the id of its result, or its primary key.")
        parser.add_argument(
            "--at",
            metavar="TIME",
            help="With NAME: one due time, '2026-11-21 09:00' in the schedule's zone, or 09:00 for today.",
        )
        parser.add_argument("--next", metavar="N", type=int, help="With NAME: list the next N due times.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument(
            "--max-wait",
            metavar="SECONDS",
            type=float,
            default=60.0,
            help="An entry that has been due for longer is a problem (default 60).",
        )
        parser.add_argument(
            "--timeout", metavar="SECONDS", type=float, default=2.0, help="Answer within this time (default 2)."
        )
        parser.add_argument(
            "--alert",
            action="store_true",
            help="Also check and send the alerts of DELAYQ['ALERTS'], as workers do; if no worker "
            "serves the queue of the messages, send them. For cron, every minute.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["schedule"] is not None or options["job"] is not None:
            self._print(_explain(options))
            return
        if options["at"] is not None or options["next"] is not None:
            raise CommandError("--at and --next need the name of a schedule.")
        if not options["max_wait"] >= 0:
            raise CommandError(f"--max-wait is zero or more, not {options['max_wait']:g}.", returncode=2)
        if not 0.1 <= options["timeout"] <= 600:
            raise CommandError(f"--timeout is from 0.1 to 600, not {options['timeout']:g}.", returncode=2)
        try:
            if not conf.get_config().mirror:
                raise CommandError(f"{conf.explain_no_redis()}: this process touches no Redis.", returncode=2)
            snapshot = take_snapshot_within(options["timeout"], max_wait=options["max_wait"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        if options["alert"]:
            self._send_alerts()
        if options["json"]:
            values = build_dict(snapshot)
            self.stdout.write(escape_text(json.dumps(values, cls=DjangoJSONEncoder, ensure_ascii=False)))
        else:
            self._print(format_lines(snapshot))
        if code := get_exit_status(snapshot.problems):
            sys.exit(code)

    def _send_alerts(self) -> None:
        if conf.get_config().alerts is None:
            raise CommandError("DELAYQ['ALERTS'] is not set, so no alert can be sent.", returncode=2)
        try:
            for failure in alerts.deliver_pending(alerts.look_now()):
                self.stderr.write(escape_text(f"Not sent: {failure}"))
        except (Error, ImproperlyConfigured) as error:
            self.stderr.write(escape_text(f"Alerts cannot be sent now: {redact_text(str(error).strip())}"))

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.stdout.write(escape_text(line))


def _explain(options: dict[str, Any]) -> list[str]:
    now, count = utcnow(), options["next"]
    if options["job"] is not None:
        if options["schedule"] is not None or options["at"] is not None or count is not None:
            raise CommandError("--job takes no schedule, --at or --next.")
        if (job := explain.find_job(options["job"])) is None:
            raise CommandError(f"There is no job with the id {options['job'][:200]!r}; its row may have expired.")
        return explain.explain_job(job, now)
    schedule = _find(options["schedule"])
    if count is not None and not 1 <= count <= MOST_SHOWN:
        raise CommandError(f"--next must be from 1 to {MOST_SHOWN}, not {count}.")
    try:
        get_zone(schedule.timezone)
        if options["at"] is not None:
            moment = explain.parse_moment(options["at"], schedule.timezone, now)
            lines = explain.explain_point(schedule, moment, now)
        else:
            lines = [] if count is not None else explain.explain_state(schedule, now)
        return lines if count is None else lines + explain.list_next(schedule, count)
    except (ValueError, OverflowError) as error:  # InvalidRecurrence is one
        raise CommandError(str(error)) from error


def _find(text: str) -> Schedule:
    """Return the schedule with this name, else with this id."""
    rows = Schedule._base_manager.using(ledger.get_database()).select_related("state")
    found = rows.filter(name=text).first() if is_storable(text) else None
    if found is None and text.isascii() and text.isdecimal() and len(text) <= 18:
        found = rows.filter(pk=int(text)).first()
    if found is not None:
        return found
    names = rows.order_by("name").values_list("name", flat=True)
    near = names.filter(name__icontains=text)[:3] if is_storable(text) else ()
    hint = f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
    raise CommandError(f"There is no schedule with the name or id {text[:200]!r}.{hint}")


def format_lines(snapshot: Snapshot) -> list[str]:
    """Return the problems, each with a suggested fix, followed by the known state."""
    redis, compared, states = snapshot.redis, snapshot.comparison, snapshot.states
    lines = [f"Problem {each.code}: {each.message}" for each in snapshot.problems if each.is_wrong]
    lines += [each.message for each in list_remarks(snapshot.problems)]
    lines = lines or ["All is well."]
    if redis is not None:
        servers = [f"{each.name} {each.version}".strip() for each in redis.servers]
        lines.append(f"Redis: {', '.join(filter(None, servers)) or 'reports no details'}")
        lines.append(f"Workers: {len(redis.live)} live, {len(redis.workers) - len(redis.live)} silent")
        lines += map(_format_queue, redis.queues)
    if compared is not None and compared.differences is not None:
        lines.append(f"Differences: {'at least ' if compared.differences.capped else ''}{compared.differences.total}")
    lines += [f"Held back: {row}: {row.restrictions}" for row in snapshot.held_back or ()]
    if snapshot.vendor:
        runs, failed = snapshot.open_runs, snapshot.failed_jobs
        numbers = [f"{name} {_format_number(count)}" for name, count in (runs or {}).items()]
        counts = NOT_COUNTED if runs is None else ", ".join(numbers)
        lines += [
            f"Database: {ledger.get_database()} ({snapshot.vendor})",
            f"Broken: {_format_named(states.broken if states else None)}",
            f"Failing: {_format_named(states.failing if states else None)}",
            f"Refused: {_format_named(snapshot.refused)}",
            f"Open runs: {counts}, failed jobs {_format_number(None if failed is None else sum(failed.values()))}",
        ]
    return lines


def _format_queue(queue: QueueView) -> str:
    late = f", the oldest {format_span(queue.oldest_due)} late" if queue.oldest_due else ""
    counts = f"{queue.members} entries ({queue.jobs} jobs), {queue.due} due ({queue.jobs_due} jobs)"
    return f"Queue {queue.queue}: {counts}, {queue.leased} leased{late}"


def _format_named(found: Named | None) -> str:
    if found is None:
        return NOT_COUNTED
    return _format_number(found.count) + (f" ({found.listed})" if found.count else "")


def _format_number(count: int | None) -> str:
    return NOT_COUNTED if count is None else f"more than {MOST_COUNTED:,}" if count > MOST_COUNTED else str(count)


def build_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as a dict for `DjangoJSONEncoder`. Its keys are public: they may be added, but not renamed.

    None is a value that is not known. A count of one above its maximum means "more than the maximum".
    """
    redis, compared, states, failed = snapshot.redis, snapshot.comparison, snapshot.states, snapshot.failed_jobs
    differences, pruned = compared.differences if compared is not None else None, snapshot.pruned
    database = {
        "alias": ledger.get_database(),
        "vendor": snapshot.vendor,
        "broken": states and asdict(states.broken),
        "failing": states and asdict(states.failing),
        "refused": snapshot.refused and asdict(snapshot.refused),
        "open_runs": snapshot.open_runs,
        "failed_jobs": None if failed is None else sum(failed.values()),
    }
    return {
        "status": get_exit_status(snapshot.problems),
        "problems": [
            {"code": each.code, "message": each.message, "status": each.status, "queue": each.queue}
            for each in snapshot.problems
            if each.is_wrong
        ],
        "prefix": conf.get_config().prefix,
        "layout": compared and compared.layout,
        "redis": redis and list(map(asdict, redis.servers)),
        "workers": redis and [{**asdict(worker), "live": worker.live} for worker in redis.workers],
        "shards": redis and list(map(asdict, redis.shards)),
        "differences": differences and {**asdict(differences), "total": differences.total},
        "stale_edits": compared and compared.stale_edits,
        "database": database if snapshot.vendor else None,
        "unknown_tasks": snapshot.unknown_tasks and asdict(snapshot.unknown_tasks),
        "late": snapshot.late and asdict(snapshot.late),
        "load": snapshot.load and snapshot.load._asdict(),
        "last_hour": None if snapshot.rows is None else list(_list_last_hour(snapshot)),
        "held_back": None if snapshot.held_back is None else list(map(_build_control, snapshot.held_back)),
        "unnamed": compared and [each._asdict() for each in compared.unnamed],
        "pruned": pruned and {name: getattr(pruned, name) for name in PRUNED},
    }


def _list_last_hour(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield the counts of each queue and kind; waits are in seconds."""
    for (queue, kind), tally in sorted(sum_by_queue(sum_rows(snapshot.rows or ())).items()):
        latency = {f"p{share}": compute_percentile(tally, LATENCY, share / 100) for share in (50, 95, 99)}
        yield {"queue": queue, "kind": kind, "outcomes": select_outcomes(tally), "latency": latency}


def _build_control(row: Control) -> dict[str, Any]:
    return {
        "kind": row.kind, "name": row.name, "paused": row.is_paused(), "most": row.most, "reason": row.reason,
        "until": row.until, "by": row.changed_by, "since": row.changed_at,
    }  # fmt: skip
