"""Imports from other schedulers. Each origin is a module that yields plain `Entry` values; the rest is shared.

Never uses Redis, unpickles nothing itself, and imports no other scheduler, except for its models and configuration.
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
