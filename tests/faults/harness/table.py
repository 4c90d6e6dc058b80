"""The table at the end: one row per fault, collected while the tests run."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(slots=True)
class Row:
    """What became of one fault. Seconds; None = does not apply. `limit` is what the recovery must not exceed."""

    fault: str
    points: int
    missing: int
    doubled: int
    executions_mean: float | None
    executions_max: int | None
    latency_p50: float | None
    latency_p99: float | None
    latency_max: float | None
    recovery: float | None = None
    limit: float | None = None
    note: str = ""

    def named(self, fault: str, **changes: Any) -> "Row":
        """Return this row under another name, perhaps with other values."""
        return replace(self, fault=fault, **changes)


HEADINGS = (
    "fault", "points", "missing", "doubled", "exec/point", "max", "latency p50", "p99", "worst", "recovery", "limit",
    "note",
)  # fmt: skip


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def lines(rows: list[Row]) -> list[str]:
    """Return the table as lines of text, in the order of the faults' numbers."""
    cells = [HEADINGS, *map(_cells, sorted(rows, key=_order))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    found = []
    for line in cells:
        left = line[0].ljust(widths[0])
        middle = [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)]
        found.append("  ".join((left, *middle, line[-1])).rstrip())
    return found


def _order(row: Row) -> tuple[int, str]:
    return int("0" + "".join(filter(str.isdigit, row.fault.split()[0]))), row.fault


def _cells(row: Row) -> tuple[str, ...]:
    most = "-" if row.executions_max is None else str(row.executions_max)
    latencies = _number(row.latency_p50, 3), _number(row.latency_p99), _number(row.latency_max)
    counts = str(row.points), str(row.missing), str(row.doubled), _number(row.executions_mean, 3), most
    return (row.fault, *counts, *latencies, _number(row.recovery), _number(row.limit, 1), row.note)
