"""How a schedule stands: does it go on by itself, what does Redis do with it, what was last, what comes next."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property

from django.utils.translation import gettext as _

from .. import chain, conf, handover, ledger, mirror, registry
from ..broker import EntryView
from ..exceptions import BrokerError, InvalidRecurrence
from ..models import Condition, Run, Schedule
from ..rows import AnyRun
from ..timing.point import known_ms
from ..timing.zone import get_zone
from ..words import describe
from .outcome import describe_run, shown


class Standing:
    """A schedule as definition, ledger and Redis have it now, in sentences. Changes nothing.

    Without `details` it is not told why Redis does not answer: that says where it is.
    """

    def __init__(self, schedule: Schedule, now: datetime, *, details: bool = True) -> None:
        self.schedule = schedule
        self.now = now
        self.zone = get_zone(schedule.timezone)
        self.state = chain.state_of(schedule)
        #: What Redis holds; None where it was not asked or did not answer, then `silence` says why.
        self.entry: EntryView | None = None
        self.silence = ""
        if not conf.get_config().mirror:
            why = {"why": _(conf.why_no_redis())}
            self.silence = _("%(why)s: nothing reaches Redis, so nothing runs.") % why
            return
        try:
            self.entry = mirror.read_entries([schedule])[schedule.pk]
        except BrokerError as error:
            text = _("Redis does not answer; whether a worker holds the lease is not known.")
            self.silence = f"{text} {error}" if details else text

    @cached_property
    def open_rows(self) -> Sequence[AnyRun]:
        """What workers have begun of its chain, the oldest first."""
        return ledger.load_open_rows([self.schedule.pk]).get(self.schedule.pk, [])

    @property
    def goes_on(self) -> bool:
        """True where it has a point to come, so that Redis should hold it."""
        return self.schedule.enabled and self.state.condition == Condition.ACTIVE

    def at(self, text: str, instant: datetime) -> str:
        """Return a text with this instant for its %(time)s."""
        return text % {"time": shown(instant, self.zone)}

    def headline(self) -> str:
        """Return the name and the recurrence in words, or what is wrong with it."""
        try:
            words = describe(self.schedule.recurrence)
        except InvalidRecurrence as error:
            words = str(error)
        if self.counts_from_finish:
            words += _(", from the end of the last run")
        return f"{self.schedule.name}: {words}"

    @property
    def counts_from_finish(self) -> bool:
        """True where the next point depends on when the last run ended."""
        return self.schedule.kind == Schedule.Kind.EVERY and self.schedule.every_from == Schedule.EveryFrom.FINISH

    def obstacles(self) -> Iterator[str]:
        """Yield what keeps the schedule from starting anything: each with what to do about it."""
        schedule, reason = self.schedule, {"reason": _sentence(self.state.condition_reason)}
        if not schedule.enabled:
            said = f" ({schedule.pause_reason})" if schedule.pause_reason else ""
            yield _("It is paused%(reason)s: no run starts. Resume it in the admin.") % {"reason": said}
        if self.state.condition == Condition.PARKED:
            yield _("It is parked: %(reason)s Edit the schedule.") % reason
        elif self.state.condition == Condition.EXHAUSTED:
            yield _("It is exhausted: %(reason)s") % reason
        for row in ledger.held_back():
            if row.is_paused() and row.concerns(schedule.queue, schedule.task):
                yield _("Held back by people: %(what)s: %(how)s.") % {"what": row, "how": row.standing}
        if registry.find_task(schedule.task) is None:
            text = _("No installed app has the @task function %(task)s; workers that lack it hand it on.")
            yield text % {"task": schedule.task}

    def handed_over(self) -> Iterator[str]:
        """Yield what another TASKS backend does with its points."""
        schedule, task = self.schedule, registry.find_task(self.schedule.task)
        if schedule.backend and task is not None:
            refusal = handover.find_refusal(task, schedule.backend, schedule.priority)
            if refusal is None:
                text = _("Its points are handed over to the TASKS backend %(backend)s, whose workers execute them.")
                yield text % {"backend": schedule.backend}
            else:
                yield _("Each of its points fails: %(reason)s") % {"reason": _sentence(str(refusal))}

    def in_redis(self) -> Iterator[str]:
        """Yield what Redis does with the schedule, where it should hold it or where a worker still does."""
        if self.goes_on or (self.entry is not None and self.entry.leased):
            yield self.describe_entry()

    def describe_entry(self) -> str:
        """Return what happens in Redis: mirrored or not, waiting, due, leased."""
        if self.entry is None:
            return self.silence
        point, score = known_ms(self.entry.point_ms), known_ms(self.entry.score_ms)
        if score is None or self.entry.point_ms is None:
            return _("Redis does not hold this schedule yet. A worker's sweep puts it there, or manage.py delayq_sync.")
        point = point or score
        values = {"point": shown(point, self.zone), "score": shown(score, self.zone), "queue": self.schedule.queue}
        if self.entry.leased:
            worker = next((row.worker for row in self.open_rows if row.due_at == point), "")
            if worker:
                text = _("Worker %(worker)s holds the lease on %(point)s until %(score)s, or renews it.")
                return text % {**values, "worker": worker}
            text = _(
                "A worker holds the lease on %(point)s until %(score)s, or renews it; its name comes with the outcome."
            )
        elif self.entry.generation != self.schedule.generation:
            text = _("Redis has not seen the last edit yet. A worker's sweep tells it, or manage.py delayq_sync.")
        elif score <= self.now:
            text = _(
                "In Redis %(point)s is due since %(score)s and nobody has claimed it. Does a worker run for queue "
                "%(queue)s?"
            )
        elif score > point:
            text = _("In Redis %(point)s waits until %(score)s: for its jitter, or for its next attempt.")
        else:
            text = _("In Redis it waits for %(point)s.")
        return text % values

    @property
    def held_point(self) -> datetime | None:
        """The due point that Redis has for the schedule."""
        return None if self.entry is None else known_ms(self.entry.point_ms)


def explain_state(schedule: Schedule, now: datetime, *, details: bool = True) -> list[str]:
    """Return how the schedule stands now, without asking about a certain point; `details` as in `Standing`."""
    standing = Standing(schedule, now, details=details)
    lines = [standing.headline(), *standing.obstacles(), *standing.handed_over(), *standing.in_redis()]
    point = None
    if standing.goes_on:
        with suppress(InvalidRecurrence):
            point = chain.next_point(schedule, standing.state)
    if point is not None:
        lines.append(_("Next: %(point)s.") % {"point": shown(point, standing.zone)})
    rows = Run._base_manager.using(ledger.database()).filter(schedule_id=schedule.pk, due_at__lte=now)
    last = rows.order_by("-due_at").first()
    if last is None:
        return [*lines, _("The ledger holds no run of it.")]
    described = describe_run(last, schedule, standing.zone)
    return [*lines, _("The newest row of the ledger:"), *(f"  {line}" for line in described)]


def list_next(schedule: Schedule, count: int) -> list[str]:
    """Return the next due points, one a line, with what is remarkable about each.

    Raises:
        InvalidRecurrence: The row holds no usable recurrence.
    """
    zone = get_zone(schedule.timezone)
    lines = []
    for point in schedule.preview(count):
        notes = f"  {'; '.join(point.annotations)}" if point.annotations else ""
        lines.append(f"{shown(point.due_at, zone)}{notes}")
    if not schedule.enabled:
        lines.append(_("It is not enabled: none of these will run."))
    return lines or [_("There is no due point to come.")]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
