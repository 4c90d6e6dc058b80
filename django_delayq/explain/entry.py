"""What Redis holds of a schedule, in sentences: mirrored or not, waiting, due, leased. Decides nothing."""

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from .. import conf, mirror
from ..broker import EntryView
from ..exceptions import BrokerError
from ..models import Schedule
from ..rows import AnyRun
from ..timing import from_ms
from .outcome import shown


@dataclass(frozen=True, slots=True)
class InRedis:
    """Redis' view: `entry` is None where it was not asked or did not answer, then `problem` says why."""

    entry: EntryView | None
    problem: str = ""

    @property
    def point(self) -> datetime | None:
        """The due point that Redis has for the schedule."""
        return None if self.entry is None else _instant(self.entry.point_ms)


def ask(schedule: Schedule) -> InRedis:
    """Return what Redis holds of the schedule. Never raises because of Redis."""
    if not conf.get_config().mirror:
        why = {"why": _(conf.why_no_redis())}
        return InRedis(None, _("%(why)s: nothing reaches Redis, so nothing runs.") % why)
    try:
        return InRedis(mirror.read_entries([schedule])[schedule.pk])
    except BrokerError as error:
        values = {"error": error}
        return InRedis(
            None, _("Redis does not answer; whether a worker holds the lease is not known. %(error)s") % values
        )


def describe_entry(found: InRedis, schedule: Schedule, open_row: AnyRun | None, now: datetime, zone: ZoneInfo) -> str:
    """Return the sentence on what happens in Redis. `open_row` is the row of the point that a worker has begun."""
    entry = found.entry
    if entry is None:
        return found.problem
    score = _instant(entry.score_ms)
    if score is None or entry.point_ms is None:
        return _("Redis does not hold this schedule yet. A worker's sweep puts it there, or manage.py delayq_sync.")
    point = _instant(entry.point_ms) or score
    values = {"point": shown(point, zone), "score": shown(score, zone), "queue": schedule.queue}
    if entry.leased:
        if open_row is not None and open_row.due_at == point and open_row.worker:
            values["worker"] = open_row.worker
            return _("Worker %(worker)s holds the lease on %(point)s until %(score)s, or renews it.") % values
        return (
            _("A worker holds the lease on %(point)s until %(score)s, or renews it; its name comes with the outcome.")
            % values
        )
    if entry.generation != schedule.generation:
        return _("Redis has not seen the last edit yet. A worker's sweep tells it, or manage.py delayq_sync.")
    if score <= now:
        return (
            _(
                "In Redis %(point)s is due since %(score)s and nobody has claimed it. Does a worker run for queue "
                "%(queue)s?"
            )
            % values
        )
    if score > point:
        return _("In Redis %(point)s waits until %(score)s: for its jitter, or for its next attempt.") % values
    return _("In Redis it waits for %(point)s.") % values


def _instant(value_ms: int | None) -> datetime | None:
    try:
        return None if value_ms is None else from_ms(value_ms)
    except OverflowError:  # garbage under our keys
        return None
