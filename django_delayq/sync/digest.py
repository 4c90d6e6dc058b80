"""Tells a definition from the one that was mirrored, so that an edit past Django is found. Reads and writes nothing.

Note [Digest]
`ScheduleState.mirrored_digest` says what was mirrored last: `effective_from`, a checksum of the fields that decide when
a schedule is due, and one of those that decide where it waits and when it is woken. It is written where the next point
is (`read.py`), so in the transaction of an edit already. Every edit through Django that changes the first kind of field
moves `effective_from`, and every edit gives a generation that is not yet the mirrored one; SQL does neither. So an edit
past Django is one that changed the first checksum but not `effective_from`, or the second one of a row that looks
mirrored. SQL that also moves `effective_from` (or the generation, for the second kind) cannot be told from an edit
through Django, and is taken as one: its author then decides what fell due before it.
"""

from datetime import timedelta
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

from ..ledger.rows import ScheduleRow
from ..models.versions import TIMING_FIELDS

#: Grows when another set of fields, or another way to write them down, would give other sums for the same definition.
VERSION = "1"
_INSTANTS = ("at", "start_at", "end_at")
_read_instants = attrgetter("created_at", *_INSTANTS)
_read_others = attrgetter(*sorted(TIMING_FIELDS - {*_INSTANTS}))


def digest_of(schedule: ScheduleRow) -> str:
    """Return what identifies this definition as far as Redis is concerned; the same in every process and database."""
    instants = [value and value.timestamp() for value in _read_instants(schedule)]
    timing = (*instants, *_read_others(schedule), schedule.name if "h" in schedule.cron.lower() else "")
    waiting = sum_of_waiting(schedule.queue, schedule.jitter, schedule.name)
    return f"{VERSION}:{schedule.effective_from.timestamp()!r}:{crc32(repr(timing).encode()):08x}:{waiting}"


def sum_of_waiting(queue: str, jitter: timedelta, name: str) -> str:
    """Return the last part of a digest: where a schedule waits and when it is woken."""
    waiting = (queue, jitter, name) if jitter else queue
    return f"{crc32(repr(waiting).encode()):08x}"


class PastDjango(NamedTuple):
    """What SQL changed of a definition since it was mirrored: when it is due, and where it waits or its jitter."""

    retimed: bool
    moved: bool


def edited_past_django(schedule: ScheduleRow, digest: str) -> PastDjango | None:
    """Compare a definition with what was mirrored of it; None where SQL edited nothing. See Note [Digest]."""
    seen = schedule.state.mirrored_digest
    if seen == digest:
        return None
    old, new = seen.split(":"), digest.split(":")
    if len(old) != len(new) or old[0] != new[0]:  # never mirrored, or by another version of this package
        return None
    retimed = old[1] == new[1] and old[2] != new[2]
    moved = old[3] != new[3] and (retimed or schedule.generation == schedule.synced_generation)
    return PastDjango(retimed, moved) if retimed or moved else None
