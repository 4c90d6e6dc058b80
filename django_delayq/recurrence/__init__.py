"""When things are due: recurrences, and policies about late points. Imports no Redis; `words`, `phrases` and
`preview` need Django's translations. Only `point.utcnow` reads a clock."""

from .cron import Cron
from .dialect import parse_every
from .point import from_ms, to_ms
from .policy import Execute, Policies, Skip, compute_wake, decide, decide_all, is_too_old
from .recurrence import Every, Once, Recurrence, Windowed

__all__ = [
    "Cron", "Every", "Execute", "Once", "Policies", "Recurrence", "Skip", "Windowed", "compute_wake", "decide",
    "decide_all", "from_ms", "is_too_old", "parse_every", "to_ms",
]  # fmt: skip
