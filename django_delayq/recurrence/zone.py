"""Time zones as stretches of constant offset, queried by instant: a local time may occur twice or not at all."""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

from ..exceptions import InvalidRecurrence
from .point import DAY, to_seconds

#: Offsets are looked up in blocks of 2**22 s, about 49 days, so that a point years ahead needs few lookups.
BLOCK_BITS = 22
_EARLIEST, _LATEST = to_seconds(datetime(1, 1, 3, tzinfo=UTC)), to_seconds(datetime(9999, 12, 29, tzinfo=UTC))
#: Zone files whose meaning depends on the machine, or that count leap seconds.
_MACHINE_DEPENDENT = ("localtime", "posixrules", "posix/", "right/")

#: A zone that every time zone database has.
_EXAMPLE = "Europe/Riga"
NO_DATA = "This machine has no time zone data, so every time zone but UTC is unknown."
INSTALL = "Install it: pip install tzdata, or the package tzdata of the system."

#: Maximum jump of summer time in s (Debian cron's rule). Blocks begin this much earlier, to include its effects.
LONGEST_SHIFT = 3 * 3600

#: (first second, end, offset, offset before), in UTC seconds since 1970. Offsets are equal where only a block begins.
Stretch = tuple[int, int, int, int]


def find_stretch(zone: tzinfo, second: int) -> Stretch:
    """Return the stretch of constant offset that holds the second; amortised cost: a dict lookup and a bisection."""
    starts, stretches = _build_block(zone, second >> BLOCK_BITS)
    return stretches[bisect_right(starts, second) - 1]


def get_offset(zone: tzinfo, second: int) -> int:
    """Return the offset from UTC in s; outside the years 1 to 9999 the nearest known one."""
    second = min(max(second, _EARLIEST), _LATEST)
    delta = datetime.fromtimestamp(second, zone).utcoffset()
    return 0 if delta is None else delta.days * DAY + delta.seconds


@lru_cache(maxsize=4096)
def _build_block(zone: tzinfo, number: int) -> tuple[list[int], list[Stretch]]:
    begin, end = (number << BLOCK_BITS) - LONGEST_SHIFT, (number + 1) << BLOCK_BITS
    changes = _find_changes(zone, begin - 1, end - 1, get_offset(zone, begin - 1), get_offset(zone, end - 1))
    starts = [begin, *(second for second in changes if second > begin)]
    bounds = pairwise([*starts, end])
    return starts, [(start, stop, get_offset(zone, start), get_offset(zone, start - 1)) for start, stop in bounds]


def _find_changes(zone: tzinfo, left: int, right: int, at_left: int, at_right: int) -> Iterator[int]:
    """Yield each second in `left < second <= right` at which the offset changes for at least a day."""
    if at_left == at_right and right - left <= DAY:
        return
    if right - left == 1:
        yield right
        return
    middle = (left + right) // 2
    at_middle = get_offset(zone, middle)
    yield from _find_changes(zone, left, middle, at_left, at_middle)
    yield from _find_changes(zone, middle, right, at_middle, at_right)


def has_data() -> bool:
    """Return whether time zone data is installed: slim images have neither system files nor the package tzdata."""
    try:
        ZoneInfo(_EXAMPLE)
    except (LookupError, OSError):
        return False
    return True


@lru_cache(maxsize=1024)
def get_zone(name: str) -> tzinfo:
    """Return the zone of an IANA name, the same object for each call. UTC needs no file."""
    if not isinstance(name, str) or not name:
        raise InvalidRecurrence(f"A time zone is a name such as {_EXAMPLE} or UTC, not {name!r}.", field="timezone")
    if name == "UTC":
        return UTC
    if not name.startswith(_MACHINE_DEPENDENT):
        try:
            return ZoneInfo(name)
        except (LookupError, ValueError, OSError):
            pass  # unknown, "../x", or a directory such as "America"
    raise InvalidRecurrence(f"There is no time zone {name[:64]!r}.{_format_hint(name[:64])}", field="timezone")


def find_instant(wall: datetime, zone: tzinfo, field: str = "at") -> datetime:
    """Return the instant at which a zone's clock shows a naive time: the first of two if its fold is 0."""
    try:
        instant = wall.replace(tzinfo=zone).astimezone(UTC)
        exists = instant.astimezone(zone).replace(tzinfo=None) == wall
    except OverflowError:
        raise InvalidRecurrence(f"{wall:%Y-%m-%d %H:%M:%S} is beyond the calendar.", field=field) from None
    if not exists:
        message = f"{wall:%Y-%m-%d %H:%M:%S} does not exist in {zone}: the clock jumps over it. Choose another time."
        raise InvalidRecurrence(message, field=field)
    return instant


def _format_hint(name: str) -> str:
    if not has_data():
        return f" {NO_DATA} {INSTALL}"
    zones = [known for known in available_timezones() if not known.startswith(_MACHINE_DEPENDENT)]
    lower = name.strip().lower().replace(" ", "_")
    known = {zone.rsplit("/", 1)[-1].lower(): zone for zone in zones} | {zone.lower(): zone for zone in zones}
    cities = [zone for zone in zones if zone.lower().startswith(f"{lower}/")]
    if cities and lower not in known:
        return f" It is a region: add a city, such as {min(cities)}."
    near = get_close_matches(lower, known, n=1, cutoff=0.8)
    return f" Did you mean {known[near[0]]}?" if near else f" Use an IANA name such as {_EXAMPLE} or UTC."
