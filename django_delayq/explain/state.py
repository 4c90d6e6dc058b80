"""How a schedule stands: does it go on by itself, what was last, what comes next. Changes nothing."""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from .. import chain, handover, ledger, registry
from ..exceptions import InvalidRecurrence
from ..models import Condition, Run, Schedule
from ..words import describe
from .entry import InRedis, ask, describe_entry
from .outcome import describe_run, shown


def explain_state(schedule: Schedule, now: datetime) -> list[str]:
    """Return how the schedule stands now, without asking about a certain point."""
    zone = ZoneInfo(schedule.timezone)
    lines = [headline(schedule)]
    lines += obstacles(schedule)
    lines += _handed_over(schedule)
    lines += in_redis(schedule, ask(schedule), now, zone)
    point = _next(schedule) if goes_on(schedule) else None
    if point is not None:
        lines.append(_("Next: %(point)s.") % {"point": shown(point, zone)})
    last = newest_row(schedule, now)
    if last is None:
        return [*lines, _("The ledger holds no run of it.")]
    return [*lines, _("The newest row of the ledger:"), *(f"  {line}" for line in describe_run(last, schedule, zone))]


def headline(schedule: Schedule) -> str:
    """Return the name and the recurrence in words, or what is wrong with it."""
    try:
        words = describe(schedule.recurrence)
    except InvalidRecurrence as error:
        words = str(error)
    if schedule.kind == Schedule.Kind.EVERY and schedule.every_from == Schedule.EveryFrom.FINISH:
        words += _(", from the end of the last run")
    return f"{schedule.name}: {words}"


def obstacles(schedule: Schedule) -> Iterator[str]:
    """Yield what keeps the schedule from starting anything: each with what to do about it."""
    state = chain.state_of(schedule)
    if not schedule.enabled:
        reason = f" ({schedule.pause_reason})" if schedule.pause_reason else ""
        yield _("It is paused%(reason)s: no run starts. Resume it in the admin.") % {"reason": reason}
    if state.condition == Condition.PARKED:
        yield _("It is parked: %(reason)s Edit the schedule.") % {"reason": _sentence(state.condition_reason)}
    elif state.condition == Condition.EXHAUSTED:
        yield _("It is exhausted: %(reason)s") % {"reason": _sentence(state.condition_reason)}
    if schedule.task not in registry.get_tasks():
        yield _("No installed app has the @task function %(task)s; workers that lack it hand it on.") % {
            "task": schedule.task
        }


def _handed_over(schedule: Schedule) -> Iterator[str]:
    task = registry.get_tasks().get(schedule.task)
    if not schedule.backend or task is None:
        return
    values = {"backend": schedule.backend}
    refusal = handover.find_refusal(task, schedule.backend, schedule.priority)
    if refusal is None:
        yield _("Its points are handed over to the TASKS backend %(backend)s, whose workers execute them.") % values
    else:
        yield _("Each of its points fails: %(reason)s") % {"reason": _sentence(str(refusal))}


def goes_on(schedule: Schedule) -> bool:
    """Say whether the schedule has a point to come, so that Redis should hold it."""
    return schedule.enabled and chain.state_of(schedule).condition == Condition.ACTIVE


def in_redis(schedule: Schedule, found: InRedis, now: datetime, zone: ZoneInfo) -> Iterator[str]:
    """Yield what Redis does with the schedule, where it should hold it or where a worker still does."""
    if goes_on(schedule) or (found.entry is not None and found.entry.leased):
        rows = ledger.load_open_rows([schedule.pk]).get(schedule.pk, [])
        yield describe_entry(found, schedule, rows[0] if rows else None, now, zone)


def newest_row(schedule: Schedule, now: datetime) -> Run | None:
    """Return the row of the newest due point."""
    rows = Run._base_manager.using(ledger.database()).filter(schedule_id=schedule.pk, due_at__lte=now)
    return rows.order_by("-due_at").first()


def _next(schedule: Schedule) -> datetime | None:
    try:
        return chain.next_point(schedule, chain.state_of(schedule))
    except InvalidRecurrence:
        return None


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def list_next(schedule: Schedule, count: int) -> list[str]:
    """Return the next due points, one a line, with what is remarkable about each.

    Raises:
        InvalidRecurrence: The row holds no usable recurrence.
    """
    zone = ZoneInfo(schedule.timezone)
    lines = []
    for point in schedule.preview(count):
        notes = f"  {'; '.join(point.annotations)}" if point.annotations else ""
        lines.append(f"{shown(point.due_at, zone)}{notes}")
    if not schedule.enabled:
        lines.append(_("It is not enabled: none of these will run."))
    return lines or [_("There is no due point to come.")]
