"""Charts as inline SVG, coloured by `admin.css`. Screen readers get a table beside it, or the title of a sparkline."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 560, 132
#: Margins in SVG units: for numbers such as "100,000" at the left, for times below, and above.
LEFT, BELOW, ABOVE = 60, 18, 8
_INNER = HEIGHT - BELOW - ABOVE
SPARK_STEP, SPARK_HEIGHT = 5, 20


def bars(
    columns: Sequence[Mapping[str, int]],
    tones: Mapping[str, str],
    names: Mapping[str, Any],
    times: Sequence[str],
    show: Callable[[float], str],
) -> SafeString:
    """Return a column for each time, stacked in the order of `tones`; `show` formats the numbers of the axis."""
    top = max(max((sum(column.values()) for column in columns), default=0), 1)
    width = (WIDTH - LEFT) / max(1, len(columns))
    shapes = []
    for at, column in enumerate(columns):
        floor = float(ABOVE + _INNER)
        parts = []
        for name, tone in tones.items():
            height = _INNER * column.get(name, 0) / top
            if height:
                height = max(height, 1.0)
                floor -= height
                parts.append(
                    (
                        tone,
                        f"{LEFT + at * width + width * 0.1:.1f}",
                        f"{floor:.1f}",
                        f"{width * 0.8:.1f}",
                        f"{height:.1f}",
                    )
                )
        told = ", ".join(f"{names[name]} {column[name]}" for name in tones if column.get(name))
        rects = format_html_join("", '<rect class="delayq-fill-{}" x="{}" y="{}" width="{}" height="{}"/>', parts)
        if parts:
            shapes.append(format_html("<g><title>{} {}</title>{}</g>", times[at], told, rects))
    return _frame(_joined(shapes), times, [(0.0, show(0)), (1.0, show(top))])


def lines(
    values: Mapping[str, Sequence[float | None]], times: Sequence[str], show: Callable[[float], str]
) -> SafeString:
    """Return a line for each name, on a scale of powers of ten; None leaves a gap."""
    known = [value for line in values.values() for value in line if value]
    low = math.floor(math.log10(min(known, default=0.001)))
    high = max(low + 1, math.ceil(math.log10(max(known, default=0.001))))
    width = (WIDTH - LEFT) / max(1, len(times))

    def place(at: int, value: float) -> tuple[str, str]:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return f"{LEFT + (at + 0.5) * width:.1f}", f"{ABOVE + _INNER * (1 - share):.1f}"

    shapes = []
    for name, line in values.items():
        points = [(at, value) for at, value in enumerate(line) if value is not None]
        for (at, value), (after, following) in pairwise(points):
            if after == at + 1:
                ends = (*place(at, value), *place(after, following))
                shapes.append(
                    format_html('<line class="delayq-line-{}" x1="{}" y1="{}" x2="{}" y2="{}"/>', name, *ends)
                )
        for at, value in points:
            dot = format_html('<circle class="delayq-line-{}" cx="{}" cy="{}" r="2">', name, *place(at, value))
            shapes.append(format_html("{}<title>{} {} {}</title></circle>", dot, times[at], name, show(value)))
    marks = [((power - low) / (high - low), show(10.0**power)) for power in range(low, high + 1)]
    return _frame(_joined(shapes), times, marks[:: max(1, len(marks) // 4)])


def spark(numbers: Sequence[int], tone: str, title: str) -> SafeString:
    """Return a small column for each number, relative to the highest; `title` describes them."""
    top = max([1, *numbers])
    columns = [(tone, math.ceil(SPARK_HEIGHT * number / top)) for number in numbers]
    return draw_columns("delayq-spark", columns, SPARK_STEP, SPARK_HEIGHT, title, number=len(numbers))


def draw_columns(
    css_class: str, columns: Sequence[tuple[str, int]], step: int, height: int, title: str, *, number: int
) -> SafeString:
    """Return columns (tone, height) with room for `number` of them, and a title for screen readers."""
    shapes = ((tone, at * step, height - high, step - 1, high) for at, (tone, high) in enumerate(columns) if high)
    picture = '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" role="img"><title>{}</title>{}</svg>'
    rects = format_html_join("", '<rect class="delayq-fill-{}" x="{}" y="{}" width="{}" height="{}"/>', shapes)
    return format_html(picture, css_class, width := step * number, height, width, height, title, rects)


def _joined(shapes: Sequence[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((shape,) for shape in shapes))


def _frame(shapes: SafeString, times: Sequence[str], marks: Sequence[tuple[float, str]]) -> SafeString:
    width = (WIDTH - LEFT) / max(1, len(times))
    across = [(LEFT, y := f"{ABOVE + _INNER * (1 - share):.1f}", WIDTH, y, LEFT - 6, y, text) for share, text in marks]
    below = [
        (f"{LEFT + (at + 0.5) * width:.1f}", HEIGHT - 4, times[at])
        for at in range(0, len(times), max(1, len(times) // 6))
    ]
    return format_html(
        '<svg class="delayq-chart" viewBox="0 0 {} {}" aria-hidden="true" focusable="false">{}{}{}</svg>',
        WIDTH,
        HEIGHT,
        format_html_join(
            "",
            '<line class="delayq-axis" x1="{}" y1="{}" x2="{}" y2="{}"/>'
            '<text x="{}" y="{}" dy="4" text-anchor="end">{}</text>',
            across,
        ),
        shapes,
        format_html_join("", '<text x="{}" y="{}" text-anchor="middle">{}</text>', below),
    )
