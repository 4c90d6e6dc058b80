"""Coming up: the next seven days as a heat map, and the next runs. `monitoring.coming` counts."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from .. import ledger
from ..monitoring import coming
from ..monitoring.coming import HOUR
from ..recurrence.point import utcnow
from . import display
from .base import BaseAdmin
from .glance import format_held

HOURS = 168
#: Number of shades of cells that are not empty.
SHADES = 6
#: Maximum next runs listed.
MOST_NAMED = 20


class Cell(NamedTuple):
    """A cell of the map: its shade, its abbreviated number, and a title with the full number and the time."""

    shade: int
    text: str
    title: str


class ComingPage(BaseAdmin):
    """A page for users who may view schedules."""

    def coming_view(self, request: HttpRequest) -> HttpResponse:
        """Show the map of the coming days, of all queues or of one."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        now, chosen, sample = utcnow(), request.GET.get("queue", ""), coming.read()
        queues = sorted({row.queue for row in sample.rows})
        rows = [row for row in sample.rows if chosen in ("", row.queue)]
        hours = coming.Hours(_find_hour(now), HOURS, now.replace(second=0, microsecond=0))
        counts = [_scale(count, sample) for count in coming.count_hours(rows, hours)]
        return self.render_page(
            request, "overview/coming.html", _("Coming up"), note=_format_estimate(sample),
            places=self.list_places(request, "coming"),
            held=[format_held(self, request, row) for row in ledger.load_controls()],  # they may still apply then
            queues=[
                (f"?{urlencode({'queue': queue})}" if queue else "?", queue or _("all"), queue == chosen)
                for queue in ("", *queues)
            ],
            heads=[f"{hour:02}" for hour in range(24)], zone=timezone.get_current_timezone_name(),
            rows=_build_days(counts, hours.first) if any(counts) else [],
            runs=[
                (display.format_instant(due_at), self.get_url("change", row.pk, model="schedule"), row.name, row.queue)
                for due_at, row in coming.list_next_runs(now, MOST_NAMED)
            ],
        )  # fmt: skip


def _find_hour(instant: datetime) -> datetime:
    """Return the start of the local hour, in UTC."""
    local = timezone.localtime(instant)
    past = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
    return local.astimezone(UTC) - past


def _scale(count: int, sample: coming.Sample) -> int:
    """Scale a number of the sample to all schedules; estimates are rounded to two significant digits."""
    found = count * sample.weight
    return found if sample.weight == 1 else round(found, 2 - len(str(found)))


def _format_number(count: int) -> str:
    """Return 1240 as "1,240"."""
    return number_format(count, use_l10n=True, force_grouping=True)


def _shorten(count: int) -> str:
    """Return 1240 as "1.2k", to fit a small cell."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}" if count < 10 * size else f"{count // size}{letter}"
    return str(count)


def _format_estimate(sample: coming.Sample) -> str:
    if sample.weight == 1:
        return ""
    numbers = {"count": _format_number(len(sample.rows)), "total": _format_number(_scale(len(sample.rows), sample))}
    return _("Estimated from %(count)s of about %(total)s schedules.") % numbers


def _build_days(counts: Sequence[int], first: datetime) -> list[tuple[str, list[Cell]]]:
    """Return a row of 24 cells for each local day. An hour that occurs twice is one cell."""
    sums: dict[str, dict[int, int]] = {}
    for at, count in enumerate(counts):
        time = timezone.localtime(first + at * HOUR)
        day = sums.setdefault(f"{time:%a %Y-%m-%d}", {})
        day[time.hour] = day.get(time.hour, 0) + count
    highest = max(max(day.values()) for day in sums.values())
    hours = range(24)
    return [(name, [_build_cell(name, hour, day.get(hour), highest) for hour in hours]) for name, day in sums.items()]


def _build_cell(day: str, hour: int, count: int | None, highest: int) -> Cell:
    if count is None:  # before now, after the last hour, or skipped by the clock
        return Cell(0, "", "")
    shade = 0 if count == 0 else 1 + (SHADES - 1) * count // max(1, highest)
    title = _("%(count)s from %(time)s on") % {"count": _format_number(count), "time": f"{day[:3]} {hour:02}:00"}
    return Cell(shade, _shorten(count) if count else "", title)
