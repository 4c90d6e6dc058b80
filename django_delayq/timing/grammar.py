"""The items of a cron field: checked, and rewritten into numbers that leave nothing to interpretation.

Everything that is refused is refused here or in `dialect.py`, with a message that says what to write instead.
Expands no ranges and no steps; that is croniter's work.
"""

import hashlib
import re
from dataclasses import dataclass, field

from ..exceptions import InvalidRecurrence

MONTHS = {
    name: number
    for number, name in enumerate(
        ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"), 1
    )
}
WEEKDAYS = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}

_VALUE = r"[A-Z]+|[0-9]+"
_RANGE = re.compile(rf"(?P<low>\*|{_VALUE})(?:-(?P<high>{_VALUE}))?(?:/(?P<step>[0-9]+))?")
_HASH = re.compile(r"H(?:\((?P<low>[0-9]+)-(?P<high>[0-9]+)\))?(?:/(?P<step>[0-9]+))?")
_LAST_DAY = re.compile(r"L(?:-(?P<back>[0-9]+))?")
_NEAREST = re.compile(r"(?P<day>[0-9]+)W")
_NTH = re.compile(rf"(?P<weekday>{_VALUE})#(?P<nth>[0-9]+|L)")
_LAST_WEEKDAY = re.compile(r"(?P<weekday>[0-9]+|SUN|MON|TUE|WED|THU|FRI|SAT)L")


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What one field of an expression allows. `high` counts what `*` means, `top` is the largest number written."""

    name: str
    low: int
    high: int
    names: dict[str, int]
    top: int

    @property
    def allowed(self) -> str:
        """Return the allowed values in words."""
        names = f" or {next(iter(self.names))}-{list(self.names)[-1]}" if self.names else ""
        if self.names is WEEKDAYS:
            return "0-7 (0 and 7 are Sunday) or SUN-SAT"
        return f"{self.low}-{self.top}{names}"


SECOND = FieldSpec("second", 0, 59, {}, 59)
MINUTE = FieldSpec("minute", 0, 59, {}, 59)
HOUR = FieldSpec("hour", 0, 23, {}, 23)
DAY_OF_MONTH = FieldSpec("day-of-month", 1, 31, {}, 31)
MONTH = FieldSpec("month", 1, 12, MONTHS, 12)
DAY_OF_WEEK = FieldSpec("day-of-week", 0, 6, WEEKDAYS, 7)


@dataclass(slots=True)
class Items:
    """The items of one field: `plain` for the parser, the rest already understood (see `fields.DayRule`)."""

    plain: list[str] = field(default_factory=list)
    before_last: list[int] = field(default_factory=list)
    nearest: list[int] = field(default_factory=list)
    last_working_day: bool = False
    nth: list[tuple[int, int]] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    source: list[str] = field(default_factory=list)


def shown(text: str) -> str:
    """Return the text in quotes, safe and short enough for a message."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def refuse(spec: FieldSpec, text: str, why: str) -> InvalidRecurrence:
    """Return the error about one item of a field."""
    return InvalidRecurrence(f"{spec.name} field: {shown(text)} {why}", field="cron")


def read_field(spec: FieldSpec, text: str, key: str) -> Items:
    """Check and normalise the items of one field, in upper case.

    Raises:
        InvalidRecurrence: An item is not understood, out of range, reversed, or has a step that does not fit.
    """
    items = Items()
    if text == "?" and spec in (DAY_OF_MONTH, DAY_OF_WEEK):
        items.plain, items.source = ["*"], ["*"]
        return items
    if "?" in text:
        raise refuse(spec, text, "is not understood: ? stands alone, in day-of-month or day-of-week. Write * instead.")
    for item in text.split(","):
        if not item:
            raise refuse(spec, text, "has an empty item. Remove the extra comma.")
        _read_item(spec, item, key, items)
    return items


def _read_item(spec: FieldSpec, item: str, key: str, items: Items) -> None:
    hashed = _HASH.fullmatch(item)
    if hashed:
        item = _hashed(spec, item, hashed, key)
    if _read_special(spec, item, items):
        items.source.append(item)
        return
    match = _RANGE.fullmatch(item)
    if match is None:
        raise refuse(spec, item, _why_not(spec, item))
    plain = _plain(spec, item, match)
    items.plain.append(plain)
    items.source.append(plain)


def _read_special(spec: FieldSpec, item: str, items: Items) -> bool:
    """Read an item that only the fields of days have; return whether it was one."""
    if spec is DAY_OF_MONTH:
        if match := _LAST_DAY.fullmatch(item):
            back = _number(spec, item, match["back"] or "0")
            if back > 30:
                raise refuse(spec, item, "is out of range: allowed are L (the last day) and L-1 to L-30.")
            items.before_last.append(back)
        elif item == "LW":
            items.last_working_day = True
        elif match := _NEAREST.fullmatch(item):
            items.nearest.append(_value(spec, item, match["day"]))
        else:
            return False
        return True
    if spec is DAY_OF_WEEK:
        if match := _NTH.fullmatch(item):
            weekday = _value(spec, item, match["weekday"]) % 7
            if match["nth"] == "L":
                items.last.append(weekday)
            elif 1 <= _number(spec, item, match["nth"]) <= 5:
                items.nth.append((weekday, int(match["nth"])))
            else:
                raise refuse(spec, item, "is out of range: after # allowed are 1-5 and L (the last one in the month).")
        elif match := _LAST_WEEKDAY.fullmatch(item):
            items.last.append(_value(spec, item, match["weekday"]) % 7)
        else:
            return False
        return True
    return False


def _plain(spec: FieldSpec, item: str, match: re.Match[str]) -> str:
    """Return a value, range or step in numbers: `*`, `*/n`, `a`, `a-b` or `a-b/n`, never a range of one value."""
    step = 1 if match["step"] is None else _number(spec, item, match["step"])
    if step < 1:
        raise refuse(spec, item, "has step 0: steps begin at 1. Leave the step out to have every value.")
    if match["low"] == "*":
        if match["high"] is not None:
            raise refuse(
                spec, item, f"is not understood: a range has a number on both sides; allowed are {spec.allowed}."
            )
        _check_step(spec, item, step, spec.low, spec.high)
        return "*" if match["step"] is None else f"*/{step}"
    low = _value(spec, item, match["low"])
    if match["high"] is not None:
        high = _value(spec, item, match["high"])
    elif match["step"] is not None:
        low, high = (low % 7, 6) if spec is DAY_OF_WEEK else (low, spec.high)
    else:
        return str(low % 7 if spec is DAY_OF_WEEK else low)
    if low > high:
        raise refuse(spec, item, f"is a reversed range. Write {_unreversed(spec, low, high)} instead.")
    _check_step(spec, item, step, low, high)
    if low == high:  # croniter reads 9-9 as the whole field
        return str(low % 7 if spec is DAY_OF_WEEK else low)
    return f"{low}-{high}" if step == 1 else f"{low}-{high}/{step}"


def _unreversed(spec: FieldSpec, low: int, high: int) -> str:
    if spec is DAY_OF_WEEK and low == 7:
        return f"0-{high}" if high else "0"
    upper = f"{low}-{spec.high}" if low < spec.high else str(low)
    lower = f"{spec.low}-{high}" if high > spec.low else str(high)
    return f"{upper},{lower}"


def _check_step(spec: FieldSpec, item: str, step: int, low: int, high: int) -> None:
    values = high - low + 1
    if step > values:
        raise refuse(
            spec,
            item,
            f"has a step larger than its range: {low}-{high} has {values} value{'s' if values > 1 else ''}, and cron "
            f"starts again with each round. Write {low}, or use the kind 'every' for an interval.",
        )


def _value(spec: FieldSpec, item: str, text: str) -> int:
    number = spec.names.get(text) if text.isalpha() else _number(spec, item, text)
    if number is None:
        raise refuse(spec, item, _why_not(spec, item))
    if not spec.low <= number <= spec.top:
        raise refuse(spec, item, f"is out of range: allowed are {spec.allowed}.")
    return number


def _number(spec: FieldSpec, item: str, text: str) -> int:
    if len(text) > 4:
        raise refuse(spec, item, f"is out of range: allowed are {spec.allowed}.")
    return int(text)


def _hashed(spec: FieldSpec, item: str, match: re.Match[str], key: str) -> str:
    """Replace `H` by what the key's hash makes of it, as plain numbers.

    Not left to croniter: its H follows the bits of one CRC, so that minute and hour go together, and a new version
    of it must not move anybody's schedule.
    """
    low, high = spec.low, spec.high
    if match["low"] is not None:
        low, high = _number(spec, item, match["low"]), _number(spec, item, match["high"])
        if not spec.low <= low <= high <= spec.high:
            sunday = " (0 is Sunday)" if spec is DAY_OF_WEEK else ""
            low, high = (min(max(end, spec.low), spec.high) for end in sorted((low, high)))
            raise refuse(
                spec,
                item,
                f"is out of range: in the brackets allowed are {spec.low}-{spec.high}{sunday}, smaller first. Write "
                f"H({low}-{high}){item.partition(')')[2]} instead.",
            )
    elif spec is DAY_OF_MONTH and match["step"] is None:
        high = 28  # a day that every month has
    digest = hashlib.sha256(f"{spec.name} {key}".encode(errors="surrogatepass")).digest()
    draw = int.from_bytes(digest[:8], "big")
    if match["step"] is None:
        return str(low + draw % (high - low + 1))
    step = _number(spec, item, match["step"])
    if step < 1:
        raise refuse(spec, item, "has step 0: steps begin at 1.")
    _check_step(spec, item, step, low, high)
    start = low + draw % step
    # Spelled out where one value is left, because a step over a range of one is refused when people write it.
    return f"{start}-{high}/{step}" if start + step <= high else str(start)


def _why_not(spec: FieldSpec, item: str) -> str:
    """Say why an item is not understood, as precisely as its look allows."""
    allowed = f"allowed are {spec.allowed}."
    if item.startswith("R") and not item[1:2].isalpha():
        return "is random, so that every worker would see other times. Write H: it is spread by the schedule's name."
    if "+" in item:
        return f"has a +, which is not supported; {allowed} Without a * both day fields are joined by 'or'."
    if item.startswith("-"):
        return f"is negative; {allowed}"
    if "#" in item:
        return f"is not understood: # stands in day-of-week, after one day, as in 5#2 or FRI#L; here {allowed}"
    if re.fullmatch("L-[0-9]+W|LW-[0-9]+", item) and spec is DAY_OF_MONTH:
        back = re.sub("[^0-9]", "", item)
        return f"is not understood. Write L-{back} for that day, whatever weekday it is, or LW for the last workday."
    if item.endswith("W") and spec is DAY_OF_WEEK:
        return f"is not understood: W stands in day-of-month only, as in 15W; here {allowed}"
    if "W" in item and spec is DAY_OF_MONTH:
        return "is not understood: W follows one day, as in 15W, or LW; ranges have no nearest weekday."
    if "H" in item and spec.names.get(item[:3]) is None:
        return f"is not understood: write H, H/15, H(0-29) or H(0-29)/10; otherwise {allowed}"
    if item == "L" and spec is DAY_OF_WEEK:
        return "is not understood: write 5L for the last Friday of the month, or SAT for Saturday."
    if re.fullmatch("[A-Z]{4,}", item) and item[:3] in spec.names:
        return f"is not understood: write {item[:3]}; {allowed}"
    if item.endswith(("L", "W")):
        return f"is not understood: L and W stand in the day fields only; {allowed}"
    return f"is not understood; {allowed}"
