"""Phrases that people type where a cron expression is wanted, in English and German. Pure; computes no due point.

Note [Phrases are offers]
"every weekday at 9" is not accepted as a recurrence: a grammar of phrases that is guessed at would decide when things
run. It is read only to say which expression may be meant, with the words that `describe` has for it; whoever typed it
takes that or does not. So the grammar may be small, and generous: words between the parts are passed over.
"""

import re
from collections.abc import Iterator

from .sets import SHORTEST_RUN, runs

#: What is longer is no phrase.
LONGEST = 100

_WORD = re.compile(
    r"(?P<time>\d{1,2}[:.]\d\d(?!\d)(?:\s?[ap]m\b)?|\d{1,2}\s?[ap]m\b)|(?P<day>\d{1,2}(?:st\b|nd\b|rd\b|th\b|\.))"
    r"|(?P<number>\d+)|(?P<word>[^\W\d]+(?:'clock)?)|(?P<sign>[,–-])|(?P<other>\S)"
)
#: What is passed over, and what means the same; a letter and a value stand for days of the week and times.
_WORDS = {
    "": "every each on the of month in a o'clock jeden jede jedem jedes alle am an der den dem des monats uhr immer",
    "at": "at um @", "and": "and und ,", "to": "to through bis - –", "last": "last letzten letzter",
    "daily": "daily day täglich tag tage", "t12:0": "noon midday mittag", "t0:0": "midnight mitternacht",
    "second": "second sec sekunde sekunden", "minute": "minute min minuten",
    "hour": "hour hourly stunde stunden stündlich",
    "w1-5": "weekday workday werktag wochentag", "w0,6": "weekend wochenende", "w0": "sunday sun sonntag so",
    "w1": "monday mon montag mo", "w2": "tuesday tue tues dienstag di", "w3": "wednesday wed mittwoch mi",
    "w4": "thursday thu thur donnerstag do", "w5": "friday fri freitag fr", "w6": "saturday sat samstag sonnabend sa",
}  # fmt: skip
_SAME = {word: same for same, words in _WORDS.items() for word in words.split()}

_DAYS = r"(?:daily|(?P<days>d(?:L|\d+)(?: and d(?:L|\d+))*)|(?P<weekdays>w[\d,-]+(?: (?:and|to) w[\d,-]+)*))"
_TIMES = r"(?P<times>(?:at n\d+|(?:at )?t\d+:\d+)(?: and (?:at )?[tn][\d:]+)*)"
_RHYTHM = r"(?:n(?P<count>\d+) )?(?P<unit>(?<=\d )second|second$|minute|hour)"
_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        f"{_RHYTHM}(?:(?: and)? {_DAYS})?", f"{_DAYS}(?: and)? {_TIMES}", f"{_TIMES}(?: and)? {_DAYS}", _TIMES,
    )
)  # fmt: skip
_ROUNDS = {"second": 60, "minute": 60, "hour": 24}


def understand(text: str) -> str | None:
    """Return the cron expression that a phrase may mean, None where it is none of those that are known.

    Known are "every 15 minutes" and "at 9", "at 9:00 and 18:00", "9am", "noon", each with "daily", weekdays, a list or
    a span of days of the week, or days of the month: "on the 1st and 15th", "on the last day of the month".
    """
    phrase = " ".join(_canonical(text)) if len(text) <= LONGEST else ""
    phrase = re.sub(r"daily (n\d+(?: and n\d+)*)", lambda found: re.sub(r"n(?=\d)", "d", found[1]), phrase)
    phrase = phrase.replace("last daily", "dL")
    for shape in _SHAPES:
        if found := shape.fullmatch(phrase):
            parts = found.groupdict()
            clock = _rhythm(parts) if parts.get("unit") else _clock(parts["times"] or "")
            days = _days(parts.get("days") or "", parts.get("weekdays") or "")
            return f"{clock} {days}" if clock and days else None
    return None


def _canonical(text: str) -> Iterator[str]:
    """Yield the words of a phrase as one letter and a value, or as one of few words; unknown ones as they are."""
    for found in _WORD.finditer(text.casefold()):
        kind, word = str(found.lastgroup), found[0]
        if kind == "time":
            yield f"t{_time(word)}"
        elif kind in ("day", "number"):
            yield f"{kind[0]}{int(''.join(filter(str.isdecimal, word)))}"
        elif same := _SAME.get(word, _SAME.get(word.removesuffix("s"), word)):
            yield same


def _time(text: str) -> str:
    hour, minute = (int(part) for part in re.findall(r"\d+", f"{text} 0")[:2])
    if text.endswith("m") and 1 <= hour <= 12:
        hour = hour % 12 + 12 * text.endswith("pm")
    return f"{hour}:{minute}"


def _rhythm(parts: dict[str, str | None]) -> str | None:
    """Return seconds, minutes and hours of "every 15 minutes", None for a step that does not divide the round."""
    unit, step = str(parts["unit"]), int(parts["count"] or 1)
    if not 1 <= step < _ROUNDS[unit] or _ROUNDS[unit] % step:
        return None
    field = f"*/{step}" if step > 1 else "*"
    return {"second": f"{field} * *", "minute": f"{field} *", "hour": f"0 {field}"}[unit]


def _clock(times: str) -> str | None:
    """Return minute and hour, None where one expression cannot have just these times."""
    found = [(int(hour), int(minute or 0)) for hour, minute in re.findall(r"[tn](\d+)(?::(\d+))?", times)]
    hours, minutes = sorted({hour for hour, _ in found}), sorted({minute for _, minute in found})
    if len(set(found)) < len(hours) * len(minutes) or hours[-1] > 23 or minutes[-1] > 59:
        return None
    return f"{','.join(map(str, minutes))} {','.join(map(str, hours))}"


def _days(days: str, weekdays: str) -> str | None:
    """Return day of month, month and day of week."""
    if days:
        names = sorted(set(re.findall(r"d(L|\d+)", days)), key=lambda name: (len(name), name))
        known = all(name == "L" or 1 <= int(name) <= 31 for name in names)
        return f"{','.join(names)} * *" if known else None
    if not weekdays:
        return "* * *"
    numbers: set[int] = set()
    for span in weekdays.split(" and "):
        ends = [_numbers(part) for part in span.split(" to ")]
        if len(ends) > 2:
            return None
        first, last = ends[0][0], ends[-1][-1]
        numbers |= set(ends[0]) if len(ends) == 1 else {(first + each) % 7 for each in range((last - first) % 7 + 1)}
    return f"* * {','.join(_shown(run) for run in runs(sorted(numbers)))}"


def _numbers(code: str) -> list[int]:
    first, _, last = code[1:].partition("-")
    return list(range(int(first), int(last) + 1)) if last else [int(number) for number in code[1:].split(",")]


def _shown(run: list[int]) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) >= SHORTEST_RUN else ",".join(map(str, run))
