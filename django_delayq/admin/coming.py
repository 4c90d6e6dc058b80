"""Coming up: the next hours as a heat map, the minutes of one, and where the most heaps up. Counts nothing itself."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import coming, ledger
from ..coming import HOUR, Hour, look_into, minute_of
from ..coming.groups import MINUTE
from ..fields import utcnow
from . import charts, facts
from .base import BaseAdmin

SPANS = {"24h": (gettext_lazy("24 hours"), 24), "7d": (gettext_lazy("7 days"), 168)}
#: So many shades there are of a cell that has something; the others are for what is more.
SHADES = 6
#: So many queues have a row of their own; the others have one together.
MOST_QUEUES = 20
#: So many schedules of a minute are named.
MOST_NAMED = 20
#: An hour that is looked into begins at most so long from now.
FARTHEST = timedelta(days=9)


class Cell(NamedTuple):
    """A cell of the map: its shade, the number in it, the number in full and when it is, and where it leads to."""

    shade: int
    text: str
    title: str
    address: str


class ComingPage(BaseAdmin):
    """A page for whoever may view schedules."""

    def coming_view(self, request: HttpRequest) -> HttpResponse:
        """Show the map of the hours to come, or the minutes of one that the address names."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        now = utcnow()
        first = read_hour(request.GET.get("hour", ""), now)
        return self._map(request, now) if first is None else self.hour_page(request, look_into(first, now))

    def _map(self, request: HttpRequest, now: datetime) -> HttpResponse:
        week = request.GET.get("span") == "7d"
        chosen = "7d" if week else "24h"
        sample, hours = coming.read(now), SPANS[chosen][1]
        outlook = coming.Outlook(sample.rows, hour_of(now), hours, minute_of(now))
        times = [timezone.localtime(outlook.steps.first + number * HOUR) for number in range(hours)]
        numbers = {queue: [scaled(each, sample) for each in column] for queue, column in outlook.by_queue().items()}
        return self.page(
            request, "overview/coming.html", _("Coming up"), note=estimate_note(sample),
            places=self.places(request, "coming"), held=self._held_back(request), queues=sorted(numbers),
            table=_table(numbers, times),
            spans=[(f"?span={name}", label, name == chosen) for name, (label, _hours) in SPANS.items()],
            heads=[f"{hour:02}" for hour in range(24)] if week else [f"{time:%H}" for time in times],
            corner=_("day") if week else _("queue"), zone=timezone.get_current_timezone_name(),
            rows=_cells(by_day(numbers, times) if week else by_queues(numbers, times)),
            peaks=[_peak(peak, sample, "%a %H:%M" if week else "%H:%M") for peak in outlook.peaks()],
        )  # fmt: skip

    def hour_page(self, request: HttpRequest, hour: Hour, **context: Any) -> HttpResponse:
        """Show the minutes of an hour, and who starts in the one that the address names, else in the busiest."""
        asked = request.GET.get("minute", "")
        minute = int(asked) if asked in [str(number) for number in range(60)] else hour.busiest
        due = hour.due(minute, MOST_NAMED + 1) if hour.minutes[minute] or hour.sample.is_estimate else []
        time = timezone.localtime(hour.first)
        queues = Counter[str]() if hour.sample.is_estimate else Counter(row.queue for row in due)
        return self.page(
            request, "overview/coming_hour.html", _("Coming up: %(hour)s") % {"hour": f"{time:%a %Y-%m-%d %H:%M}"},
            note=estimate_note(hour.sample), back=self.address("coming"), zone=timezone.get_current_timezone_name(),
            bars=minute_bars(hour, [{"start": scaled(each, hour.sample)} for each in hour.minutes]),
            table=[
                (f"{address_of(hour.first)}&minute={number}", clock(hour, number), scaled(count, hour.sample))
                for number, count in enumerate(hour.minutes) if count
            ],
            named=[(row.pk, row.name, row.queue, self.address("change", row.pk, model="schedule"))
                   for row in due[:MOST_NAMED]],
            count=number(scaled(hour.minutes[minute], hour.sample)), minute=minute, at=clock(hour, minute),
            more=max(0, len(due) - MOST_NAMED), hour=hour.first.isoformat(),
            spread=self.address("spread") if self.may_spread(request) else "", places=self.places(request, "coming"),
            held=self._held_back(request), shares=queues.most_common(MOST_QUEUES), exact=not hour.sample.is_estimate,
            **context,
        )  # fmt: skip

    def _held_back(self, request: HttpRequest) -> list[SafeString]:
        """Return what people hold back now: it may be held back then."""
        return [facts.held_back(self, request, row) for row in ledger.held_back()]

    def may_spread(self, request: HttpRequest) -> bool:
        """Say whether the schedules of a minute may be changed from here."""
        return request.user.has_perm("django_delayq.change_schedule")


def read_hour(text: str, now: datetime) -> datetime | None:
    """Return the beginning of the hour that an address names; None where it names none to come."""
    try:
        found = datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None
    if found is None or not now - HOUR < found < now + FARTHEST:
        return None
    return hour_of(found)


def hour_of(instant: datetime) -> datetime:
    """Return when the hour of the clock began, in UTC."""
    local = timezone.localtime(instant)
    past = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
    return local.astimezone(UTC) - past


def address_of(hour: datetime) -> str:
    """Return the query that shows this hour."""
    return "?" + urlencode({"hour": f"{hour.astimezone(UTC):%Y-%m-%dT%H:%MZ}"})


def clock(hour: Hour, minute: int) -> str:
    """Return "09:05"."""
    return f"{timezone.localtime(hour.first + minute * MINUTE):%H:%M}"


def minute_bars(hour: Hour, columns: Sequence[Mapping[str, int]]) -> SafeString:
    """Return a picture of an hour: a column for each minute, of what starts, or of the chosen ones and the others."""
    tones = {"others": "quiet", "chosen": "busy", "start": "busy"}
    names = {"others": _("others"), "chosen": _("chosen"), "start": _("starts")}
    times = [clock(hour, minute) for minute in range(60)]
    return charts.bars(columns, tones, names, times, lambda each: short(round(each)))


def scaled(count: int, sample: coming.Sample) -> int:
    """Return a number of the sample for all schedules; what is estimated has two digits that say something."""
    if not sample.is_estimate:
        return count
    found = round(count * sample.weight)
    return round(found, 2 - len(str(found)))


def number(count: int) -> str:
    """Return 1240 as "1,240"."""
    return number_format(count, use_l10n=True, force_grouping=True)


def short(count: int) -> str:
    """Return 1240 as "1.2k": what a small cell has room for."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}" if count < 10 * size else f"{count // size}{letter}"
    return str(count)


def estimate_note(sample: coming.Sample) -> str:
    """Return what is said where not all schedules were looked at."""
    if not sample.is_estimate:
        return ""
    numbers = {"count": number(len(sample.rows)), "total": number(scaled(len(sample.rows), sample))}
    return _("Estimated from %(count)s of about %(total)s schedules.") % numbers


#: A name, and for each column of the map when it is, with its number; None where the map has no such time.
Row = tuple[str, list[tuple[datetime, int | None]]]


def by_queues(numbers: Mapping[str, Sequence[int]], times: Sequence[datetime]) -> list[Row]:
    """Return a row for each queue, those with the least together."""
    ranked = sorted(numbers, key=lambda queue: (-sum(numbers[queue]), queue))
    kept = sorted(ranked[:MOST_QUEUES])
    rows: list[Row] = [(queue, list(zip(times, numbers[queue], strict=True))) for queue in kept]
    others = [numbers[queue] for queue in ranked[MOST_QUEUES:]]
    if others:
        rows.append((_("others"), list(zip(times, map(sum, zip(*others, strict=True)), strict=True))))
    return rows


def by_day(numbers: Mapping[str, Sequence[int]], times: Sequence[datetime]) -> list[Row]:
    """Return a row for each day of the clock, with the sums of all queues. An hour that comes twice is one cell."""
    sums = map(sum, zip(*numbers.values(), strict=True)) if numbers else [0] * len(times)
    days: dict[str, list[tuple[datetime, int | None]]] = {}
    for time, count in zip(times, sums, strict=True):
        row = days.setdefault(f"{time:%a %Y-%m-%d}", [(time, None)] * 24)
        first, known = row[time.hour]
        row[time.hour] = (time if known is None else first, count + (known or 0))
    return list(days.items())


def _peak(peak: coming.Peak, sample: coming.Sample, written: str) -> tuple[str, str]:
    """Return "1,240 at 00:00" and where its hour is shown."""
    at = timezone.localtime(peak.at)
    text = _("%(count)s at %(time)s") % {"count": number(scaled(peak.runs, sample)), "time": f"{at:{written}}"}
    return text, f"{address_of(hour_of(peak.at))}&minute={at.minute}"


def _cells(rows: Sequence[Row]) -> list[tuple[str, list[Cell]]]:
    """Return the map, shaded by its highest number."""
    highest = max((count for _, row in rows for _, count in row if count is not None), default=0)
    return [(name, [_cell(time, count, highest) for time, count in row]) for name, row in rows]


def _cell(time: datetime, count: int | None, highest: int) -> Cell:
    if count is None:
        return Cell(0, "", "", "")
    shade = 0 if count == 0 else 1 + (SHADES - 1) * count // max(1, highest)
    title = _("%(count)s from %(time)s on") % {"count": number(count), "time": f"{time:%a %H:%M}"}
    return Cell(shade, short(count) if count else "", title, address_of(time))


def _table(numbers: Mapping[str, Sequence[int]], times: Sequence[datetime]) -> list[tuple[str, str, list[str], str]]:
    """Return a line for each hour that has something: when, where it leads to, each queue's number, and their sum."""
    lines = []
    for at, time in enumerate(times):
        each = [numbers[queue][at] for queue in sorted(numbers)]
        if any(each):
            lines.append((f"{time:%a %Y-%m-%d %H:%M}", address_of(time), [*map(number, each)], number(sum(each))))
    return lines
