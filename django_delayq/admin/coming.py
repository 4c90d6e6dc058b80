"""Coming up: the next hours as a heat map, and the next runs. `monitoring.coming` counts."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import ledger
from ..monitoring import coming
from ..monitoring.coming import HOUR
from ..recurrence.point import utcnow
from . import display
from .base import BaseAdmin
from .glance import format_held

SPANS = {"24h": (gettext_lazy("24 hours"), 24), "7d": (gettext_lazy("7 days"), 168)}
#: Number of shades of cells that are not empty.
SHADES = 6
#: Maximum queues with a row of their own; the others share one.
MOST_QUEUES = 20
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
        """Show the map of the coming hours, and the next runs."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        now, week = utcnow(), request.GET.get("span") == "7d"
        chosen = "7d" if week else "24h"
        sample, hours = coming.read(), SPANS[chosen][1]
        shown = coming.Hours(_hour_of(now), hours, now.replace(second=0, microsecond=0))
        times = [timezone.localtime(shown.first + number * HOUR) for number in range(hours)]
        counts = coming.count_by_queue(sample.rows, shown)
        numbers = {queue: [_scale(each, sample) for each in column] for queue, column in counts.items()}
        return self.page(
            request, "overview/coming.html", _("Coming up"), note=_estimate_note(sample),
            places=self.places(request, "coming"),
            held=[format_held(self, request, row) for row in ledger.held_back()],  # they may still apply then
            spans=[(f"?span={name}", label, name == chosen) for name, (label, _hours) in SPANS.items()],
            heads=[f"{hour:02}" for hour in range(24)] if week else [f"{time:%H}" for time in times],
            corner=_("day") if week else _("queue"), zone=timezone.get_current_timezone_name(),
            rows=_cells(by_day(numbers, times) if week else by_queues(numbers, times)) if numbers else [],
            runs=[
                (display.instant(due_at), self.address("change", row.pk, model="schedule"), row.name, row.queue)
                for due_at, row in coming.next_runs(now, MOST_NAMED)
            ],
        )  # fmt: skip


def _hour_of(instant: datetime) -> datetime:
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


def _estimate_note(sample: coming.Sample) -> str:
    """Return a note if only a sample of the schedules was read, else ''."""
    if sample.weight == 1:
        return ""
    numbers = {"count": _format_number(len(sample.rows)), "total": _format_number(_scale(len(sample.rows), sample))}
    return _("Estimated from %(count)s of about %(total)s schedules.") % numbers


#: A name, and for each column its time and number; None if the map does not include that time.
Row = tuple[str, list[tuple[datetime, int | None]]]


def by_queues(numbers: Mapping[str, Sequence[int]], times: Sequence[datetime]) -> list[Row]:
    """Return a row for each queue; those with the fewest runs share one."""
    ranked = sorted(numbers, key=lambda queue: (-sum(numbers[queue]), queue))
    kept = sorted(ranked[:MOST_QUEUES])
    rows: list[Row] = [(queue, list(zip(times, numbers[queue], strict=True))) for queue in kept]
    others = [numbers[queue] for queue in ranked[MOST_QUEUES:]]
    if others:
        rows.append((_("others"), list(zip(times, map(sum, zip(*others, strict=True)), strict=True))))
    return rows


def by_day(numbers: Mapping[str, Sequence[int]], times: Sequence[datetime]) -> list[Row]:
    """Return a row for each local day, with the sums of all queues. An hour that occurs twice is one cell."""
    sums = map(sum, zip(*numbers.values(), strict=True))
    days: dict[str, list[tuple[datetime, int | None]]] = {}
    for time, count in zip(times, sums, strict=True):
        row = days.setdefault(f"{time:%a %Y-%m-%d}", [(time, None)] * 24)
        first, known = row[time.hour]
        row[time.hour] = (time if known is None else first, count + (known or 0))
    return list(days.items())


def _cells(rows: Sequence[Row]) -> list[tuple[str, list[Cell]]]:
    highest = max((count for _, row in rows for _, count in row if count is not None), default=0)
    return [(name, [_cell(time, count, highest) for time, count in row]) for name, row in rows]


def _cell(time: datetime, count: int | None, highest: int) -> Cell:
    if count is None:
        return Cell(0, "", "")
    shade = 0 if count == 0 else 1 + (SHADES - 1) * count // max(1, highest)
    title = _("%(count)s from %(time)s on") % {"count": _format_number(count), "time": f"{time:%a %H:%M}"}
    return Cell(shade, _shorten(count) if count else "", title)
