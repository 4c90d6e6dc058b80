"""The items of a cron field, checked and expanded to numbers. Refusals say what to write instead."""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from ..exceptions import InvalidRecurrence
from .fields import LAST, DayRule

_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

_VALUE = r"[A-Z]+|[0-9]+"
_RANGE = re.compile(rf"(?P<low>\*|{_VALUE})(?:-(?P<high>{_VALUE}))?(?:/(?P<step>[0-9]+))?")
_HASH = re.compile(r"H(?:\((?P<low>[0-9]+)-(?P<high>[0-9]+)\))?(?:/(?P<step>[0-9]+))?")
_BEFORE_LAST = re.compile(r"L(?:-(?P<back>[0-9]+))?")
_NEAREST = re.compile(r"(?P<day>[0-9]+)W")
_NTH = re.compile(rf"(?P<weekday>{_VALUE})#(?P<nth>[0-9]+|L)|(?P<last>[0-9]+|{'|'.join(_WEEKDAY_NAMES)})L")


@dataclass(frozen=True, slots=True, eq=False)
class FieldSpec:
    """The values of a field: `*` means `low` to `high`, `top` is the largest accepted, `names[0]` means `low`."""

    name: str
    low: int
    high: int
    top: int
    names: tuple[str, ...]
    allowed: str


DAY_OF_MONTH = FieldSpec("day-of-month", 1, 31, 31, (), "1-31")
DAY_OF_WEEK = FieldSpec("day-of-week", 0, 6, 7, _WEEKDAY_NAMES, "0-7 (0 and 7 are Sunday) or SUN-SAT")
SPECS = (
    FieldSpec("second", 0, 59, 59, (), "0-59"),
    FieldSpec("minute", 0, 59, 59, (), "0-59"),
    FieldSpec("hour", 0, 23, 23, (), "0-23"),
    DAY_OF_MONTH,
    FieldSpec("month", 1, 12, 12, _MONTH_NAMES, "1-12 or JAN-DEC"),
    DAY_OF_WEEK,
)


class _Refused(Exception):
    """The reason to refuse an item. `read_field` quotes the item as typed."""


def read_field(spec: FieldSpec, text: str, key: str, rule: DayRule) -> int:
    """Return the values, ranges and steps of one field as a bit mask; put other items into the rule."""
    if text == "?" and spec in (DAY_OF_MONTH, DAY_OF_WEEK):
        text = "*"
    typed, mask = text, 0
    try:
        if "?" in text:
            raise _Refused("is not understood: ? stands alone, in day-of-month or day-of-week. Write * instead.")
        if not all(text.split(",")):
            raise _Refused("has an empty item. Remove the extra comma.")
        for typed in text.split(","):
            item = typed.upper()
            if hashed := _HASH.fullmatch(item):
                item = _replace_hash(spec, item, hashed, key)
            if not _read_day(spec, item, rule) and not _read_weekday(spec, item, rule):
                mask |= _read_range(spec, item)
    except _Refused as refused:
        raise InvalidRecurrence(f"{spec.name} field: {typed!r} {refused}", field="cron") from None
    return mask


def _read_day(spec: FieldSpec, item: str, rule: DayRule) -> bool:
    """Put `L`, `L-3`, `LW` or `15W` into the rule; return whether the item was one of these."""
    if spec is not DAY_OF_MONTH:
        return False
    if item == "LW":
        rule.nearest.add(31)
    elif match := _NEAREST.fullmatch(item):
        rule.nearest.add(_parse_value(spec, item, match["day"]))
    elif match := _BEFORE_LAST.fullmatch(item):
        back = _parse_number(spec, match["back"] or "0")
        if back > 30:
            raise _Refused("is out of range: allowed are L (the last day) and L-1 to L-30.")
        rule.before_last.add(back)
    else:
        return False
    return True


def _read_weekday(spec: FieldSpec, item: str, rule: DayRule) -> bool:
    """Put `5#2`, `5#L` or `5L` into the rule; return whether the item was one of these."""
    match = _NTH.fullmatch(item) if spec is DAY_OF_WEEK else None
    if match is None:
        return False
    weekday = _parse_value(spec, item, match["weekday"] or match["last"]) % 7
    if match["nth"] in (None, "L"):
        nth = LAST
    else:
        nth = _parse_number(spec, match["nth"])
        if not 1 <= nth <= 5:
            raise _Refused("is out of range: after # allowed are 1-5 and L (the last one in the month).")
    rule.nth.add((weekday, nth))
    return True


@lru_cache(maxsize=4096)
def _read_range(spec: FieldSpec, item: str) -> int:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise _Refused(_explain_refusal(spec, item))
    step = 1 if match["step"] is None else _parse_number(spec, match["step"])
    if step < 1:
        raise _Refused("has step 0: steps begin at 1. Leave the step out to have every value.")
    if match["low"] == "*":
        if match["high"] is not None:
            raise _Refused(f"is not understood: a range has a number on both sides; allowed are {spec.allowed}.")
        low, high = spec.low, spec.high
    else:
        low = high = _parse_value(spec, item, match["low"])
        if match["high"] is not None:
            high = _parse_value(spec, item, match["high"])
        elif match["step"] is not None:
            low, high = low % 7 if spec is DAY_OF_WEEK else low, spec.high
    if low > high:
        raise _Refused(f"is a reversed range. Write {_split_reversed(spec, low, high)} instead.")
    _check_step(spec, step, low, high)
    size = 7 if spec is DAY_OF_WEEK else 60
    return sum(1 << number for number in {number % size for number in range(low, high + 1, step)})


def _split_reversed(spec: FieldSpec, low: int, high: int) -> str:
    if spec is DAY_OF_WEEK and low == 7:
        return f"0-{high}" if high else "0"
    upper = f"{low}-{spec.high}" if low < spec.high else str(low)
    lower = f"{spec.low}-{high}" if high > spec.low else str(high)
    return f"{upper},{lower}"


def _check_step(spec: FieldSpec, step: int, low: int, high: int) -> None:
    values = high - low + 1
    if step > values:
        raise _Refused(
            f"has a step larger than its range: {low}-{high} has {values} value{'s' if values > 1 else ''}, and cron "
            f"starts again with each round. Write {low}, or use the kind 'every' for an interval.",
        )


def _parse_value(spec: FieldSpec, item: str, text: str) -> int:
    if text.isdecimal():
        number = _parse_number(spec, text)
    elif text in spec.names:
        number = spec.low + spec.names.index(text)
    else:
        raise _Refused(_explain_refusal(spec, item))
    if not spec.low <= number <= spec.top:
        raise _Refused(f"is out of range: allowed are {spec.allowed}.")
    return number


def _parse_number(spec: FieldSpec, text: str) -> int:
    if len(text) > 4:
        raise _Refused(f"is out of range: allowed are {spec.allowed}.")
    return int(text)


def _replace_hash(spec: FieldSpec, item: str, match: re.Match[str], key: str) -> str:
    """Replace `H` by plain numbers from the hash of field and key. Another hash would move existing schedules."""
    low, high = spec.low, spec.high
    if match["low"] is not None:
        low, high = _parse_number(spec, match["low"]), _parse_number(spec, match["high"])
        if not spec.low <= low <= high <= spec.high:
            sunday = " (0 is Sunday)" if spec is DAY_OF_WEEK else ""
            low, high = (min(max(end, spec.low), spec.high) for end in sorted((low, high)))
            raise _Refused(
                f"is out of range: in the brackets allowed are {spec.low}-{spec.high}{sunday}, smaller first. Write "
                f"H({low}-{high}){item.partition(')')[2]} instead.",
            )
    elif spec is DAY_OF_MONTH and match["step"] is None:
        high = 28  # a day that every month has
    digest = hashlib.sha256(f"{spec.name} {key}".encode(errors="surrogatepass")).digest()
    draw = int.from_bytes(digest[:8], "big")
    if match["step"] is None:
        return str(low + draw % (high - low + 1))
    step = _parse_number(spec, match["step"])
    if step < 1:
        raise _Refused("has step 0: steps begin at 1.")
    _check_step(spec, step, low, high)
    start = low + draw % step
    # A single value has no step: a step over a range of one is refused.
    return f"{start}-{high}/{step}" if start + step <= high else str(start)


#: Pattern of an item, its field (None for any field), and why it is not understood.
_LOOKS = (
    ("^R([^A-Z]|$)", None,
     "is random, so each worker would compute other times. Write H, which depends on the schedule's name."),
    (r"\+", None, "has a +, which is not supported; {allowed} Without a * both day fields are joined by 'or'."),
    ("^-", None, "is negative; {allowed}"),
    ("#", None, "is not understood: # follows one day in day-of-week, as in 5#2 or FRI#L; here {allowed}"),
    ("^(L-[0-9]+W|LW-[0-9]+)$", DAY_OF_MONTH,
     "is not understood. Write L-{number} for that day, whatever weekday it is, or LW for the last workday."),
    ("W$", DAY_OF_WEEK, "is not understood: W is for day-of-month only, as in 15W; here {allowed}"),
    ("W", DAY_OF_MONTH, "is not understood: W follows one day, as in 15W, or LW; ranges have no nearest weekday."),
    ("^L$", DAY_OF_WEEK, "is not understood: write 5L for the last Friday of the month, or SAT for Saturday."),
)  # fmt: skip


def _explain_refusal(spec: FieldSpec, item: str) -> str:
    allowed, begin = f"allowed are {spec.allowed}.", item[:3]
    for pattern, only, why in _LOOKS:
        if only in (None, spec) and re.search(pattern, item):
            return why.format(allowed=allowed, number=re.sub("[^0-9]", "", item))
    if begin in spec.names and re.fullmatch("[A-Z]{4,}", item):
        return f"is not understood: write {begin}; {allowed}"
    if "H" in item and begin not in spec.names:
        return f"is not understood: write H, H/15, H(0-29) or H(0-29)/10; otherwise {allowed}"
    if item.endswith(("L", "W")):
        return f"is not understood: L and W are for the day fields only; {allowed}"
    return f"is not understood; {allowed}"
