"""Charts as inline SVG, coloured by `admin.css`. Screen readers get a table beside it, or the title of a sparkline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 560, 132
#: Margins in SVG units: at the left, for numbers such as "100,000"; at the bottom, for times; at the top.
LEFT, BELOW, ABOVE = 60, 18, 8
_INNER = HEIGHT - BELOW - ABOVE
SPARK_STEP, SPARK_HEIGHT = 5, 20


def render_bars(
    columns: Sequence[Mapping[str, int]], series: Mapping[str, tuple[str, Any]], times: Sequence[str]
) -> SafeString:
    """Return a column for each time, stacked in the order of `series`, which has tones and labels."""
    top = max(max((sum(column.values()) for column in columns), default=0), 1)
    width = (WIDTH - LEFT) / max(1, len(columns))
    shapes = [
        _stack(column, series, time, LEFT + at * width, width, top)
        for at, (column, time) in enumerate(zip(columns, times, strict=True))
        if any(column.values())
    ]
    axis = [(LEFT, y, WIDTH, y, LEFT - 6, y, f"{number:,}") for y, number in ((ABOVE + _INNER, 0), (ABOVE, top))]
    labels = [
        (f"{LEFT + (at + 0.5) * width:.1f}", HEIGHT - 4, times[at])
        for at in range(0, len(times), max(1, len(times) // 6))
    ]
    line = '<line class="delayq-axis" x1="{}" y1="{}" x2="{}" y2="{}"/>'
    return format_html(
        '<svg class="delayq-chart" viewBox="0 0 {} {}" aria-hidden="true" focusable="false">{}{}{}</svg>',
        WIDTH,
        HEIGHT,
        format_html_join("", line + '<text x="{}" y="{}" dy="4" text-anchor="end">{}</text>', axis),
        format_html_join("", "{}", ((shape,) for shape in shapes)),
        format_html_join("", '<text x="{}" y="{}" text-anchor="middle">{}</text>', labels),
    )


def _stack(
    column: Mapping[str, int], series: Mapping[str, tuple[str, Any]], time: str, x: float, width: float, top: int
) -> SafeString:
    floor, parts, labels = float(ABOVE + _INNER), [], []
    for name, (tone, label) in series.items():
        if column.get(name):
            height = max(_INNER * column[name] / top, 1.0)
            floor -= height
            parts.append((tone, f"{x + width * 0.1:.1f}", f"{floor:.1f}", f"{width * 0.8:.1f}", f"{height:.1f}"))
            labels.append(f"{label} {column[name]}")
    words = ", ".join(labels)
    rects = format_html_join("", '<rect class="delayq-fill-{}" x="{}" y="{}" width="{}" height="{}"/>', parts)
    return format_html("<g><title>{} {}</title>{}</g>", time, words, rects)


def render_spark(numbers: Sequence[int], tone: str, title: str) -> SafeString:
    """Return a small column for each number, relative to the highest; `title` describes them."""
    top = max([1, *numbers])
    columns = [(tone, math.ceil(SPARK_HEIGHT * number / top)) for number in numbers]
    return render_columns("delayq-spark", columns, SPARK_STEP, SPARK_HEIGHT, title, number=len(numbers))


def render_columns(
    css_class: str, columns: Sequence[tuple[str, int]], step: int, height: int, title: str, *, number: int
) -> SafeString:
    """Return columns (tone, height) with room for `number` of them, and a title for screen readers."""
    shapes = ((tone, at * step, height - high, step - 1, high) for at, (tone, high) in enumerate(columns) if high)
    picture = '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" role="img"><title>{}</title>{}</svg>'
    rects = format_html_join("", '<rect class="delayq-fill-{}" x="{}" y="{}" width="{}" height="{}"/>', shapes)
    return format_html(picture, css_class, width := step * number, height, width, height, title, rects)
