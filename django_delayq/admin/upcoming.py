"""What the form shows beside its inputs: the next due points and the chosen task. Renders HTML; saves nothing."""

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import chain, registry
from ..exceptions import InvalidRecurrence, UnknownTask
from ..models import Schedule
from ..timing import describe
from .display import block, relative, utcnow
from .durations import format_duration

SHOWN = 5
TEMPLATE = "admin/django_delayq/schedule/upcoming.html"


def next_points(schedule: Schedule, now: datetime, count: int = SHOWN) -> Iterator[datetime]:
    """Yield the first due points after now, in UTC, as many as `max_runs` leaves.

    Raises:
        InvalidRecurrence: The row holds no usable recurrence.
    """
    state = chain.state_of(schedule)
    if schedule.max_runs is not None:
        count = min(count, schedule.max_runs - state.run_count)
    rule, base = chain.rule_and_base(schedule, state)
    point: datetime | None = max(base, now)
    for _number in range(count):
        assert point is not None  # noqa: S101 - for the type checker
        try:
            point = rule.next_after(point)
        except OverflowError:
            return
        if point is None:
            return
        yield point


def render_upcoming(schedule: Schedule) -> SafeString | str:
    """Return a table of the next due points in the schedule's zone and in UTC, a dash where there is no recurrence."""
    now = utcnow()
    try:
        zone = ZoneInfo(schedule.timezone)
        points = list(next_points(schedule, now))
        words = describe(schedule.recurrence)
    except (InvalidRecurrence, LookupError, ValueError, OSError):
        return _("Fill in when it runs, and the next due points appear here.")
    rows = [
        {
            "local": f"{point.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}",
            "utc": f"{point.astimezone(UTC):%a %Y-%m-%d %H:%M:%S}",
            "relative": relative(point, now),
        }
        for point in points
    ]
    context = {"rows": rows, "zone": schedule.timezone, "words": words, "notes": list(_notes(schedule))}
    return render_to_string(TEMPLATE, context)


def _notes(schedule: Schedule) -> Iterator[str]:
    if not schedule.enabled:
        yield _("It is not enabled: none of these will run.")
    if schedule.kind == Schedule.Kind.EVERY and schedule.every_from == Schedule.EveryFrom.FINISH:
        yield _("Each run moves the following ones by as long as it takes.")
    if schedule.jitter:
        yield _("Each starts up to %(jitter)s later: its jitter.") % {"jitter": format_duration(schedule.jitter)}


def render_task(path: str) -> SafeString | str:
    """Return signature and docstring of a task, a dash where none is chosen."""
    if not path:
        return _("Choose a task, and what it takes appears here.")
    try:
        task = registry.get_task(path)
    except UnknownTask as error:
        return format_html('<p class="delayq-problem">{}</p>', str(error))
    called = f"{task.name}{registry.signature(task)}"
    doc = inspect.getdoc(task.func) or ""
    return format_html('<code class="delayq-signature">{}</code>{}', called, block(doc, "delayq-doc") if doc else "")
