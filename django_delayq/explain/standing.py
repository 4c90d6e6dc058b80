"""How a schedule stands: does it go on by itself, what does Redis do with it, what was last, what comes next."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property

from django.utils.translation import gettext as _

from .. import chain, conf, handover, ledger, mirror, registry
from ..broker import EntryView
from ..declared.values import SWITCH, differing, from_json, values_of
from ..exceptions import BrokerError, InvalidRecurrence
from ..models import Condition, Definition, Run, Schedule, Status, explain_wait
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

    @cached_property
    def waits(self) -> str:
        """What pauses of its queue and its task keep waiting; see `explain_wait`."""
        return explain_wait(ledger.held_back(), (self.schedule.queue, self.schedule.task))

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
            user = _find_pauser(schedule)
            said += " " + _("by %(user)s") % {"user": user} if user else ""
            yield _("It is paused%(reason)s: no run starts until it is resumed.") % {"reason": said}
        if self.state.condition == Condition.PARKED:
            yield _("It is parked: %(reason)s Edit the schedule.") % reason
        elif self.state.condition == Condition.EXHAUSTED:
            yield _("It is exhausted: %(reason)s") % reason
        if self.waits:
            yield self.waits
        if registry.find_task(schedule.task) is None:
            text = _(
                "task missing: will not run. No installed app has the @task function %(task)s; workers that lack it "
                "hand it on."
            )
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
        elif score <= self.now and self.waits:
            text = _("In Redis %(point)s has been due since %(score)s.")
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

    def edited_since(self, run: Run) -> Iterator[str]:
        """Yield that the definition was edited after a run. A pause or a resumption is no edit."""
        schedule = self.schedule
        if run.generation == schedule.generation or run.status not in (Status.SUCCEEDED, Status.FAILED):
            return
        kept = Definition.objects.using(ledger.database()).of_generation(schedule.pk, run.generation)
        if kept is None:
            yield _("The schedule was changed since.")
        elif any(unit is not SWITCH for unit in differing(from_json(kept.values), values_of(schedule))):
            yield _("The definition has been edited since.")

    @property
    def held_point(self) -> datetime | None:
        """The due point that Redis has for the schedule."""
        return None if self.entry is None else known_ms(self.entry.point_ms)


def _find_pauser(schedule: Schedule) -> str:
    """Return the name of the user who paused a schedule; '' where it is not kept. See kept.py, Note [What is kept]."""
    following: Schedule | Definition = schedule
    for kept in Definition.objects.using(ledger.database()).filter(schedule=schedule.pk).order_by("-pk"):
        if not kept.is_followed_by(following):
            break
        if kept.values["enabled"]:
            return kept.by
        following = kept
    return ""


def explain_state(schedule: Schedule, now: datetime, *, details: bool = True) -> list[str]:
    """Return how the schedule stands now, without asking about a certain point; `details` as in `Standing`."""
    standing = Standing(schedule, now, details=details)
    lines = [standing.headline(), *standing.obstacles(), *standing.handed_over(), *standing.in_redis()]
    point = None
    if standing.goes_on and registry.find_task(schedule.task) is not None:
        with suppress(InvalidRecurrence):
            point = chain.next_point(schedule, standing.state)
    if point is not None:
        lines.append(_("Next: %(point)s.") % {"point": shown(point, standing.zone)})
    rows = Run._base_manager.using(ledger.database()).filter(schedule_id=schedule.pk, due_at__lte=now)
    last = rows.order_by("-due_at").first()
    if last is None:
        return [*lines, _("The ledger holds no run of it.")]
    described = [*describe_run(last, schedule, standing.zone), *standing.edited_since(last)]
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
    elif registry.find_task(schedule.task) is None:
        lines.append(_("task missing: will not run"))
    return lines or [_("There is no due point to come.")]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
