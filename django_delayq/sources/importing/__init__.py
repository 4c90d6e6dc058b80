"""Coming over from other schedulers: each origin is a module that yields plain `Entry` values; planning and writing are
shared. Never touches Redis, unpickles nothing, and imports nothing of another scheduler.
"""

from .entry import Entry, Options, UnreadableSource
from .export import exported
from .origins import ORIGINS, Origin, origin
from .plan import Choices, Step, enable, take_over

__all__ = [
    "ORIGINS",
    "Choices",
    "Entry",
    "Options",
    "Origin",
    "Step",
    "UnreadableSource",
    "enable",
    "exported",
    "origin",
    "take_over",
]
