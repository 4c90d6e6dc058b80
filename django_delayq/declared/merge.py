"""Decides which fields follow the code and which stay as a person left them. Pure. See Note [Three sides]."""

from dataclasses import dataclass
from typing import Any

from .values import SWITCH, UNITS, Unit, Values

#: Why a schedule is disabled that the code no longer declares.
GONE = "The code no longer declares this schedule."


@dataclass(frozen=True, slots=True)
class Merge:
    """`follow` are to be set to what the code says, `stay` were changed by a person and differ from it."""

    follow: tuple[Unit, ...]
    stay: tuple[Unit, ...]

    def changes(self, wanted: Values) -> dict[str, Any]:
        """Return the values to set."""
        return {name: value for unit in self.follow for name, value in unit.of(wanted).items()}


def merge(last: Values, current: Values, wanted: Values) -> Merge:
    """Compare what the code said last, what the schedule has, and what the code says now."""
    differing = [unit for unit in UNITS if not unit.same(current, wanted)]
    follow = tuple(unit for unit in differing if unit.same(current, last))
    return Merge(follow, tuple(unit for unit in differing if unit not in follow))


def switched_off(current: Values) -> dict[str, Any]:
    """Return what to set on a schedule that is gone from the code; nothing where it is off already.

    The same goes into what the code said last: should the schedule come back, it is on again unless a person has
    touched the switch.
    """
    return {"enabled": False, "pause_reason": GONE} if current[SWITCH.name] else {}
