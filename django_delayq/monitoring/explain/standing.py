"""Describes the current state of a schedule: obstacles, its entry in Redis, the last run and the next points."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property

from django.utils.translation import gettext as _

from ... import conf, ledger
from ...calls import handover, registry
from ...exceptions import InvalidRecurrence
from ...ledger import chain
from ...ledger.rows import AnyRun
from ...models import Condition, Control, Definition, Run, Schedule, Status, explain_wait
from ...models.differences import SWITCH, differing, from_json, values_of
from ...recurrence.words import describe
from ...recurrence.zone import get_zone
from .entry import Entry
from .outcome import describe_run, shown


class Standing:
    """A schedule's current definition, ledger rows and entry in Redis, as sentences."""

    def __init__(self, schedule: Schedule, now: datetime) -> None:
        self.schedule = schedule
        self.now = now
        self.zone = get_zone(schedule.timezone)
        self.state = chain.state_of(schedule)
        self.entry = Entry(chain.member_of(schedule.pk), schedule.queue)

    @cached_property
    def open_rows(self) -> Sequence[AnyRun]:
        """Open rows of the schedule's chain, the oldest first."""
        return ledger.load_open_rows([self.schedule.pk]).get(self.schedule.pk, [])

    @cached_property
    def held(self) -> Sequence[Control]:
        return ledger.held_back()

    @cached_property
    def waits(self) -> str:
        return explain_wait(self.held, (self.schedule.queue, self.schedule.task))

    @property
    def goes_on(self) -> bool:
        """True if the schedule has a next point, so that Redis should hold it."""
        return self.schedule.enabled and self.state.condition == Condition.ACTIVE

    def at(self, text: str, instant: datetime) -> str:
        """Fill the %(time)s of a text."""
        return text % {"time": shown(instant, self.zone)}

    def headline(self) -> str:
        """Return the name and the recurrence in words, or the error of the recurrence."""
        try:
            words = describe(self.schedule.recurrence)
        except InvalidRecurrence as error:
            words = str(error)
        if self.counts_from_finish:
            words += _(", from the end of the last run")
        return f"{self.schedule.name}: {words}"

    @property
    def counts_from_finish(self) -> bool:
        return self.schedule.kind == Schedule.Kind.EVERY and self.schedule.every_from == Schedule.EveryFrom.FINISH

    def obstacles(self) -> Iterator[str]:
        """Yield what keeps the schedule from starting a run, each with what to do."""
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
        yield from holding_up(schedule.queue, schedule.task, self.held)

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
        """Yield what Redis does with the schedule, if Redis should hold it or a worker still has its lease."""
        if self.goes_on or self.entry.leased:
            yield from self.describe_entry()
            yield from slowing(self.schedule.queue, self.held)

    def describe_entry(self) -> Iterator[str]:
        """Yield the state of its entry in Redis: not mirrored, waiting, due or leased."""
        point = self.entry.point
        worker = next((row.worker for row in self.open_rows if row.due_at == point), "") if self.entry.leased else ""
        generation, waits = self.schedule.generation, self.waits
        return self.entry.describe(generation, self.now, self.zone, waits=waits, worker=worker)

    def describe(self, run: Run) -> list[str]:
        """Return a run's outcome, and whether the definition has been edited since."""
        attempts, catch_up = self.schedule.max_attempts, self.schedule.max_catch_up
        return [*describe_run(run, self.zone, attempts=attempts, catch_up=catch_up), *self.edited_since(run)]

    def edited_since(self, run: Run) -> Iterator[str]:
        """Yield that the definition was edited after a run. Pausing and resuming are not edits."""
        schedule = self.schedule
        if run.generation == schedule.generation or run.status not in (Status.SUCCEEDED, Status.FAILED):
            return
        kept = Definition.objects.using(ledger.database()).of_generation(schedule.pk, run.generation)
        if kept is None:
            yield _("The schedule was changed since.")
        elif any(unit is not SWITCH for unit in differing(from_json(kept.values), values_of(schedule))):
            yield _("The definition has been edited since.")


def holding_up(queue: str, task: str, held: Sequence[Control]) -> Iterator[str]:
    """Yield what keeps everything of a queue and a task from starting."""
    waits = explain_wait(held, (queue, task))
    if waits:
        yield waits
    if registry.find_task(task) is None:
        text = _(
            "task missing: will not run. No installed app has the @task function %(task)s; workers that lack it "
            "hand it on."
        )
        yield text % {"task": task}


def slowing(queue: str, held: Sequence[Control]) -> Iterator[str]:
    """Yield why few or no workers take due entries of a queue."""
    for row in held:
        if row.most is not None and (row.kind, row.name) == (Control.Kind.QUEUE, queue):
            yield f"{row}: {row.standing}."
    if queue not in conf.get_config().queues:
        text = _("DELAYQ['QUEUES'] does not name queue %(queue)s here; only workers that have it there serve it.")
        yield text % {"queue": queue}


def _find_pauser(schedule: Schedule) -> str:
    """Return the user who paused a schedule; '' if that is not stored. See kept.py, Note [What is kept]."""
    following: Schedule | Definition = schedule
    for kept in Definition.objects.using(ledger.database()).filter(schedule=schedule.pk).order_by("-pk"):
        if not kept.is_followed_by(following):
            break
        if kept.values["enabled"]:
            return kept.by
        following = kept
    return ""


def explain_state(schedule: Schedule, now: datetime) -> list[str]:
    """Describe the current state of a schedule and its last run."""
    standing = Standing(schedule, now)
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
    return [*lines, _("The newest row of the ledger:"), *(f"  {line}" for line in standing.describe(last))]


def list_next(schedule: Schedule, count: int) -> list[str]:
    """Return the next due points, one in a line, with their annotations.

    Raises:
        InvalidRecurrence: The row has no usable recurrence.
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
