"""The cron recurrence: an expression, a zone, and what happens around summer time. Neither parses nor walks itself."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from ..exceptions import InvalidRecurrence
from .dialect import compile_cron
from .fields import Fields
from .point import from_seconds, micros, seconds
from .walk import Walk
from .zone import get_zone

DST_GAP = ("run_after", "skip")
DST_OVERLAP = ("once", "twice")


@lru_cache(maxsize=4096)
def _prepare(expression: str, timezone: str, dst_gap: str, dst_overlap: str, key: str) -> Walk:
    for name, value, allowed in (("dst_gap", dst_gap, DST_GAP), ("dst_overlap", dst_overlap, DST_OVERLAP)):
        if value not in allowed:
            raise InvalidRecurrence(f"{name} is one of {' and '.join(allowed)}, not {value!r}.", field=name)
    fields = compile_cron(expression, key)
    return Walk(
        fields,
        get_zone(timezone),
        run_after=fields.fixed and dst_gap == "run_after",
        once=fields.fixed and dst_overlap == "once",
    )


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone. Equal by its arguments; compiled once per process and set of arguments.

    `key` feeds the hash behind `H`: the same key always gives the same times. `dst_gap` and `dst_overlap` concern
    fixed-time jobs only (neither minute nor hour begins with `*`).

    Raises:
        InvalidRecurrence: The message names the field, the value and what is allowed.
    """

    expression: str
    timezone: str = "UTC"
    dst_gap: str = "run_after"
    dst_overlap: str = "once"
    key: str = ""
    _walk: Walk = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("expression", "timezone", "dst_gap", "dst_overlap", "key"):
            value = getattr(self, name)
            if not isinstance(value, str):
                column = "cron" if name in ("expression", "key") else name
                raise InvalidRecurrence(f"{name} must be text, not {value!r}.", field=column)
        key = self.key if "h" in self.expression.lower() else ""  # else thousands of names would each be prepared
        walk = _prepare(self.expression, self.timezone, self.dst_gap, self.dst_overlap, key)
        object.__setattr__(self, "_walk", walk)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cron, (self.expression, self.timezone, self.dst_gap, self.dst_overlap, self.key)

    @property
    def fields(self) -> Fields:
        """Return the compiled expression."""
        return self._walk.fields

    def next_after(self, instant: datetime) -> datetime | None:
        return from_seconds(self._walk.first_at_or_after(seconds(instant) + 1))

    def previous_at_or_before(self, instant: datetime, floor: datetime) -> datetime | None:
        """See `Recurrence`. Costs some 20 to 30 times `next_after`."""
        return from_seconds(self._walk.last_at_or_before(seconds(instant), seconds(floor)))

    def count_between(self, first: datetime, last: datetime) -> int:
        return self._walk.count(-(-micros(first) // 1_000_000), seconds(last))
