"""A clock that stands still until it is moved, in place of the real one. Knows no schedule and no job.

Note [What is frozen]
`django.utils.timezone.now()`, however it was imported, and all that Django makes of it (`localtime()`, `localdate()`,
`auto_now`, sessions, signatures' own clock excepted), and every module of this package. Python's own `datetime.now()`,
`date.today()` and `time.time()` and the database's `Now()` go on: replacing them for a whole process is what packages
such as time-machine and freezegun are for. `FrozenClock.followers` are told each instant, so that these can be moved
along. The monotonic clock is never touched: timeouts are counted by it.
"""

import sys
import time as real_time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from django.utils import timezone

from ..exceptions import DelayQError
from ..recurrence import from_ms, to_ms

#: Whose `datetime` and `time` are replaced.
MODULES = ("django_delayq.", "django.utils.timezone.")
#: What lives by the real clock all the same.
EXCEPT = ("django_delayq.testing.", "django_delayq.embedded.")
DATETIME = datetime


class Frozen:
    """A class or a module in every respect, but for what asks for the time."""

    def __init__(self, real: Any, **instead: Any) -> None:
        self._real = real
        vars(self).update(instead)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real(*args, **kwargs)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class FrozenClock:
    """Whole ms since the epoch. See Note [What is frozen]."""

    def __init__(self, now: datetime | None) -> None:
        """Take the first instant, by default the real one.

        Raises:
            ValueError: It is naive.
        """
        self.now_ms = to_ms(now if now is not None else datetime.now(UTC))
        self.followers: list[Callable[[datetime], object]] = []
        self._replaced: list[tuple[dict[str, Any], str, Any]] = []

    @property
    def now(self) -> datetime:
        """The frozen instant, aware, in UTC."""
        return from_ms(self.now_ms)

    def _now(self, tz: tzinfo | None = None) -> datetime:
        return self.now.astimezone(tz) if tz else self.now.astimezone().replace(tzinfo=None)

    def set(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for follow in self.followers:
            follow(self.now)

    def advance(self, duration: timedelta) -> None:
        self.set(self.now_ms + duration // timedelta(milliseconds=1))

    def freeze(self) -> None:
        """Put this clock in place of the real one, or of what another package has put there.

        Raises:
            DelayQError: A clock of this kind is there already.
        """
        if isinstance(vars(timezone)["datetime"], Frozen):
            raise DelayQError("A Runner is active already: use that one, or end it first.")
        seconds, nanoseconds = (lambda: self.now_ms / 1000), (lambda: self.now_ms * 1_000_000)
        frozen = {
            "datetime": Frozen(DATETIME, now=self._now),
            "time": Frozen(real_time, time=seconds, time_ns=nanoseconds),
        }
        for module_name, module in list(sys.modules.items()):
            if not f"{module_name}.".startswith(MODULES) or f"{module_name}.".startswith(EXCEPT):
                continue
            names = vars(module)
            for name, replacement in frozen.items():
                real = names.get(name)
                if real is real_time or (isinstance(real, type) and issubclass(real, DATETIME)):
                    self._replaced.append((names, name, real))
                    names[name] = replacement

    def thaw(self) -> None:
        """Put the real one back."""
        while self._replaced:
            names, name, real = self._replaced.pop()
            names[name] = real
