"""Finds edits past Django by comparing a definition with the one that was mirrored. Reads and writes nothing.

Note [Digest]
`ScheduleState.mirrored_digest` describes what was mirrored last: `effective_from`, a checksum of the timing fields,
and a checksum of the fields that decide where a schedule waits and when it is woken. It is written together with the
next point (`read.py`). Through Django, an edit of the timing moves `effective_from`, and every edit sets a generation
that is not mirrored yet; SQL does neither. So an edit past Django has changed the first checksum without
`effective_from`, or the second checksum of a row that looks mirrored. SQL that also moves `effective_from` (or the
generation, for the second checksum) counts as an edit through Django: its author decides what happens to points that
fell due before.
"""

from datetime import timedelta
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

from ..ledger.rows import ScheduleRow
from ..models.versions import TIMING_FIELDS

#: Raise it if other fields, or another format, would change the digest of an unchanged definition.
VERSION = "1"
_INSTANTS = ("at", "start_at", "end_at")
_read_instants = attrgetter("created_at", *_INSTANTS)
_read_others = attrgetter(*sorted(TIMING_FIELDS - {*_INSTANTS}))


def digest_of(schedule: ScheduleRow) -> str:
    """Return the digest of a definition, which is the same in every process and database."""
    instants = [value and value.timestamp() for value in _read_instants(schedule)]
    timing = (*instants, *_read_others(schedule), schedule.name if "h" in schedule.cron.lower() else "")
    waiting = sum_of_waiting(schedule.queue, schedule.jitter, schedule.name)
    return f"{VERSION}:{schedule.effective_from.timestamp()!r}:{crc32(repr(timing).encode()):08x}:{waiting}"


def sum_of_waiting(queue: str, jitter: timedelta, name: str) -> str:
    """Return the last part of a digest: where a schedule waits and when it is woken."""
    waiting = (queue, jitter, name) if jitter else queue
    return f"{crc32(repr(waiting).encode()):08x}"


class PastDjango(NamedTuple):
    """What SQL changed since a definition was mirrored: its timing (`retimed`), its queue or jitter (`moved`)."""

    retimed: bool
    moved: bool


def edited_past_django(schedule: ScheduleRow, digest: str) -> PastDjango | None:
    """Return what SQL changed in a definition since it was mirrored, or None. See Note [Digest]."""
    seen = schedule.state.mirrored_digest
    if seen == digest:
        return None
    old, new = seen.split(":"), digest.split(":")
    if len(old) != len(new) or old[0] != new[0]:  # never mirrored, or with another VERSION
        return None
    retimed = old[1] == new[1] and old[2] != new[2]
    moved = old[3] != new[3] and (retimed or schedule.generation == schedule.synced_generation)
    return PastDjango(retimed, moved) if retimed or moved else None
