"""Redis' replies as values, and members as they stand in Redis. Garbage is never an error here."""

import math
from typing import Any

from .types import Settled

#: The end of the year 9999 in ms.
LAST_MS = 253_402_300_799_999


def text(value: Any) -> str:
    """Accept bytes and str replies. Garbage bytes become surrogates, never an error, and `wire` turns them back."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def wire(member: str) -> bytes:
    """Return a member as it stands in Redis."""
    return member.encode("utf-8", "surrogateescape")


def number(value: Any) -> int | None:
    """Return a whole number from 0 to 2^53, or None for nothing and for garbage: what Lua's `whole` accepts."""
    if value is None:
        return None
    try:
        found = int(float(value))
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < 2**53 else None


def claimed_ms(holder: str) -> int | None:
    """Return when a fence was given, by the server's clock; it may be followed by more. None for what is none."""
    found, dot, _ = holder.partition(".")
    return (number(found) or 0) // 1024 or None if dot else None


def clock_ms(value: Any) -> int:
    """Return a reply to TIME as ms since the epoch."""
    seconds, micros = value
    return int(seconds) * 1000 + int(micros) // 1000


def head_ms(value: Any) -> int | None:
    """Return a score as ms: damaged ones of the past as 0, so that they come due; None for none, and for never."""
    score = float(value) if value not in ("", b"", "stale", b"stale") else math.inf
    return None if score >= 2**53 else int(max(0.0, score))


def instant_ms(value: Any) -> int | None:
    """Return ms since the epoch, or None for nothing, for garbage and for what lies beyond the calendar."""
    found = number(value)
    return found if found is not None and found <= LAST_MS else None


def settled(reply: Any) -> Settled:
    """Return the reply to a settlement."""
    now, head, *replies = reply
    return Settled(int(now), head_ms(head), [int(item) for item in replies])
