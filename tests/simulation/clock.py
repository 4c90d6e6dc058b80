"""One clock for everything: the Redis server's TIME, each process' wall clock, and the monotonic clock of all of them.

All of them are whole ms, so that a history gives the same rows every time. Nothing here waits.
"""

import datetime as real
import sys
import time
from types import SimpleNamespace

from django_delayq.recurrence import from_ms

#: 2026-11-21 00:00:00 UTC.
BEGIN_MS = 1_795_219_200_000
#: Whose `time` and `datetime` are replaced, and what lives by the real clock all the same.
PACKAGES = ("django_delayq.", "django.utils.timezone")
EXCEPT = ("django_delayq.testing", "django_delayq.embedded")
#: How scripts ask for the time, and what they ask instead.
MS = """  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)"""


class Clock:
    """The time of a history. `actor` is whose wall clock is asked: a worker's name, or `web`."""

    def __init__(self, monkeypatch):
        """Put this clock in place of the real ones."""
        self.reset()
        faked = SimpleNamespace(
            monotonic=self.monotonic,
            perf_counter=self.monotonic,
            time=lambda: self.wall().timestamp(),
            sleep=lambda seconds: None,
        )
        wall = _wall_class(self)
        for name, module in list(sys.modules.items()):
            if not name.startswith(PACKAGES) or name.startswith(EXCEPT):
                continue
            if getattr(module, "time", None) is time:
                monkeypatch.setattr(module, "time", faked)
            if getattr(module, "datetime", None) is real.datetime:
                monkeypatch.setattr(module, "datetime", wall)

    def reset(self):
        """Begin a new history."""
        self.elapsed_ms = 0
        self.server_offset_ms = 0
        self.skews_ms = {}
        self.actor = "web"

    def server_ms(self):
        """Return what Redis takes for now."""
        return BEGIN_MS + self.elapsed_ms + self.server_offset_ms

    def monotonic(self):
        """Return seconds that never step."""
        return 1_000_000 + self.elapsed_ms / 1000

    def wall(self):
        """Return the wall clock of the process that acts."""
        return from_ms(BEGIN_MS + self.elapsed_ms + self.skews_ms.get(self.actor, 0))


def _wall_class(clock):
    """Return a class that is `datetime` in every respect but `now`."""

    class Meta(type(real.datetime)):
        def __instancecheck__(cls, instance):
            return isinstance(instance, real.datetime)

    class Wall(real.datetime, metaclass=Meta):
        @classmethod
        def now(cls, tz=None):
            return clock.wall().astimezone(tz)

    return Wall


def timed(text, key):
    """Return a script that takes the time from a key instead of the server's TIME."""
    now = f"  return tonumber(redis.call('GET', '{key}'))"
    replaced = text.replace(MS, now)
    assert "'TIME'" not in replaced or "PURPOSE  Try" in text, "a script asks for the time in another way: MS"
    return replaced
