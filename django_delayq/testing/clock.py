"""A clock that stands still until it is moved. Independent of schedules and jobs.

Note [Only Django's time and this package are frozen]
These are frozen: `django.utils.timezone.now()`, however it was imported; what Django derives from it (`localtime()`,
`auto_now`, sessions, but not signatures); and every module of this package. Python's own `datetime.now()` and
`time.time()` and the database's `Now()` are not: use time-machine or freezegun for these, and `FrozenClock.followers`
to move their clock. The monotonic clock is not frozen, because timeouts use it.
"""

import sys
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from unittest import mock

from django.utils import timezone

from ..exceptions import DelayQError
from ..recurrence import from_ms, to_ms

#: Modules whose `datetime` and `time` are replaced.
MODULES = ("django_delayq.", "django.utils.timezone.")
#: Modules that keep the real clock.
EXCEPT = ("django_delayq.testing.", "django_delayq.embedded.")


class Frozen:
    """A proxy of a class or module that replaces only the functions that return the time."""

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
    """The frozen time, in whole ms since the epoch. See Note [Only Django's time and this package are frozen]."""

    def __init__(self, now: datetime | None) -> None:
        self.now_ms = to_ms(now if now is not None else datetime.now(UTC))
        self.followers: list[Callable[[datetime], object]] = []

    @property
    def now(self) -> datetime:
        return from_ms(self.now_ms)

    def _get_now(self, tz: tzinfo | None = None) -> datetime:
        return self.now.astimezone(tz) if tz else self.now.astimezone().replace(tzinfo=None)

    def set(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for follow in self.followers:
            follow(self.now)

    def advance(self, duration: timedelta) -> None:
        self.set(self.now_ms + duration // timedelta(milliseconds=1))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Replace the real clock, or that of another package. Raises DelayQError if another one is frozen already."""
        if isinstance(vars(timezone)["datetime"], Frozen):
            raise DelayQError("A Runner is active already: use that one, or end it first.")
        seconds, nanoseconds = (lambda: self.now_ms / 1000), (lambda: self.now_ms * 1_000_000)
        replacements = {
            "datetime": Frozen(datetime, now=self._get_now),
            "time": Frozen(real_time, time=seconds, time_ns=nanoseconds),
        }
        with ExitStack() as stack:
            for module_name, module in list(sys.modules.items()):
                if not f"{module_name}.".startswith(MODULES) or f"{module_name}.".startswith(EXCEPT):
                    continue
                for name, replacement in replacements.items():
                    real = vars(module).get(name)
                    if real is real_time or (isinstance(real, type) and issubclass(real, datetime)):
                        stack.enter_context(mock.patch.object(module, name, replacement))
            yield
