"""When things are due: recurrences, and policies about late points. Imports no Redis; `words`, `phrases` and
`preview` need Django's translations. Only `point.utcnow` reads a clock."""

from .cron import Cron
from .dialect import parse_every
from .point import from_ms, to_ms
from .policy import Policies, Run, Skip, decide, decide_all, too_old, wake_at
from .recurrence import Every, Once, Recurrence, Windowed

__all__ = [
    "Cron", "Every", "Once", "Policies", "Recurrence", "Run", "Skip", "Windowed", "decide", "decide_all", "from_ms",
    "parse_every", "to_ms", "too_old", "wake_at",
]  # fmt: skip
