"""Phrases typed instead of a cron expression, in English and German. Pure; computes no due point.

Note [Phrases are only suggestions]
A phrase leads to a suggestion, which the user accepts or rejects: so the grammar can be small and tolerant.
"""

import re
from collections.abc import Iterator

from . import Cron, parse_every
from .words import SHORTEST_RUN, describe_cron, describe_every, split_runs

#: Maximum characters of a phrase.
LONGEST = 100

_WORD = re.compile(
    r"(?P<time>\d{1,2}[:.]\d\d(?!\d)(?:\s?[ap]m\b)?|\d{1,2}\s?[ap]m\b)|(?P<day>\d{1,2}(?:st\b|nd\b|rd\b|th\b|\.))"
    r"|(?P<number>\d+)|(?P<word>[^\W\d]+(?:'clock)?)|(?P<sign>[,–-])|(?P<other>\S)"
)
#: Ignored words, and synonyms by their common form: a letter and a value for weekdays, days, times and numbers.
_WORDS = {
    "": "every each on the of month in a o'clock uhr "
    "jeden jede jedem jedes alle am an der den dem des im monat monats immer",
    "at": "at um @", "and": "and und ,", "to": "to through bis - –", "last": "last letzten letzter",
    "daily": "daily day täglich tag tage", "weekly": "weekly week wöchentlich woche wochen", "n2": "other",
    "monthly": "monthly monatlich", "times": "times mal", "n1 times": "once einmal", "n2 times": "twice zweimal",
    "d1": "first erste ersten erster", "d2": "zweite zweiten zweiter", "d3": "third dritte dritten dritter",
    "d4": "fourth vierte vierten vierter", "d5": "fifth fünfte fünften fünfter",
    "t12:0": "noon midday mittag", "t0:0": "midnight mitternacht",
    "second": "second sec sekunde sekunden", "minute": "minute min minuten",
    "hour": "hour hourly stunde stunden stündlich",
    "w1-5": "weekday workday werktag wochentag", "w0,6": "weekend wochenende", "w0": "sunday sun sonntag so",
    "w1": "monday mon montag mo", "w2": "tuesday tue tues dienstag di", "w3": "wednesday wed mittwoch mi",
    "w4": "thursday thu thur donnerstag do", "w5": "friday fri freitag fr", "w6": "saturday sat samstag sonnabend sa",
}  # fmt: skip
_NUMBERS = (
    "one two three four five six seven eight nine ten eleven twelve",
    "eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
)
_SAME = {word: same for same, words in _WORDS.items() for word in words.split()} | {
    word: f"n{number}" for words in _NUMBERS for number, word in enumerate(words.split(), 1)
}

_DAYS = r"(?:daily|(?P<days>d(?:L|\d+)(?: and d(?:L|\d+))*)|(?P<weekdays>W(?: (?:and|to) W)*))".replace(
    "W", r"w(?:\d(?:#\d|L)|[\d,-]+)"
)
_TIMES = r"(?P<times>(?:at n\d+|(?:at )?t\d+:\d+)(?: and (?:at )?[tn][\d:]+)*)"
_RHYTHM = r"(?:n(?P<count>\d+) )?(?P<unit>(?<=\d )second|second$|minute|hour)"
_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        f"{_RHYTHM}(?:(?: and)? {_DAYS})?", f"{_DAYS}(?:(?: and)? {_TIMES})?", f"{_TIMES}(?: and)? {_DAYS}", _TIMES,
    )
)  # fmt: skip
_INTERVAL = re.compile(r"n(\d+) (second|minute|hour|daily|weekly)")
_OFTEN = re.compile(r"n(\d+) times (hour|daily)")
_ROUNDS = {"second": 60, "minute": 60, "hour": 24}


def understand(text: str) -> str | None:
    """Return the cron expression that a phrase may mean, or `@every …` if none fits; None if it is not understood."""
    phrase = " ".join(_normalize_words(text)) if len(text) <= LONGEST else ""
    phrase = re.sub(r"daily (n\d+(?: and n\d+)*)", lambda found: re.sub(r"n(?=\d)", "d", found[1]), phrase)
    phrase = phrase.replace("last daily", "dL")
    if re.search("month|monat", text.casefold()):  # else "every second Monday" may mean every other week
        phrase = re.sub(r"(d[1-5]|second|last) w([0-6])(?![\d,-])", _format_nth, phrase)
    phrase = re.sub(r"(weekly (?=w)|monthly (?=[dw]))", "", phrase)
    if found := _OFTEN.fullmatch(phrase):
        return _spread_evenly(int(found[1]), _ROUNDS["minute" if found[2] == "hour" else "hour"])
    return _build_expression(phrase.replace("monthly", "d1")) or _parse_interval(phrase)


def _build_expression(phrase: str) -> str | None:
    phrase = re.sub(r"(?<!\d )weekly", "w0", phrase)
    for shape in _SHAPES:
        if found := shape.fullmatch(phrase):
            parts = found.groupdict()
            clock = _parse_rhythm(parts) if parts.get("unit") else _parse_clock(parts.get("times") or "t0:0")
            days = _parse_days(parts.get("days") or "", parts.get("weekdays") or "")
            return f"{clock} {days}" if clock and days else None
    return None


def _format_nth(found: re.Match[str]) -> str:
    nth = {"second": "#2", "last": "L"}.get(found[1], f"#{found[1][1:]}")
    return f"w{found[2]}{nth}"


def _spread_evenly(count: int, size: int) -> str | None:
    """Return the expression for `count` times in an hour or a day, None if these are not evenly spaced."""
    if not count or size % count:
        return None
    step = "0" if count == 1 else "*" if count == size else f"*/{size // count}"
    return f"{step} * * * *" if size == _ROUNDS["minute"] else f"0 {step} * * *"


def _parse_interval(phrase: str) -> str | None:
    if not (found := _INTERVAL.fullmatch(phrase)):
        return None
    count, unit = int(found[1]), found[2][0]
    every = f"@every {count * 7}d" if unit == "w" else f"@every {count}{unit}"
    return every if parse_every(every) else None


def _normalize_words(text: str) -> Iterator[str]:
    """Yield the words of a phrase in their common form; unknown words unchanged."""
    for found in _WORD.finditer(text.casefold()):
        kind, word = str(found.lastgroup), found[0]
        if kind == "time":
            yield f"t{_format_time(word)}"
        elif kind in ("day", "number"):
            yield f"{kind[0]}{int(''.join(filter(str.isdecimal, word)))}"
        elif same := _SAME.get(word, _SAME.get(word.removesuffix("s"), word)):
            yield same


def _format_time(text: str) -> str:
    hour, minute = (int(part) for part in re.findall(r"\d+", f"{text} 0")[:2])
    if text.endswith("m") and 1 <= hour <= 12:
        hour = hour % 12 + 12 * text.endswith("pm")
    return f"{hour}:{minute}"


def _parse_rhythm(parts: dict[str, str | None]) -> str | None:
    """Return seconds, minutes and hours of "every 15 minutes", None for a step that does not divide the unit evenly."""
    unit, step = str(parts["unit"]), int(parts["count"] or 1)
    if not 1 <= step < _ROUNDS[unit] or _ROUNDS[unit] % step:
        return None
    field = f"*/{step}" if step > 1 else "*"
    return {"second": f"{field} * *", "minute": f"{field} *", "hour": f"0 {field}"}[unit]


def _parse_clock(times: str) -> str | None:
    """Return minute and hour, None if one expression cannot have exactly these times."""
    found = [(int(hour), int(minute or 0)) for hour, minute in re.findall(r"[tn](\d+)(?::(\d+))?", times)]
    hours, minutes = sorted({hour for hour, _ in found}), sorted({minute for _, minute in found})
    if len(set(found)) < len(hours) * len(minutes) or hours[-1] > 23 or minutes[-1] > 59:
        return None
    return f"{','.join(map(str, minutes))} {','.join(map(str, hours))}"


def _parse_days(days: str, weekdays: str) -> str | None:
    if days:
        names = sorted(set(re.findall(r"d(L|\d+)", days)), key=lambda name: (len(name), name))
        known = all(name == "L" or 1 <= int(name) <= 31 for name in names)
        return f"{','.join(names)} * *" if known else None
    if not weekdays:
        return "* * *"
    numbers, nth = set[int](), list[str]()
    for span in weekdays.split(" and "):
        if "#" in span or "L" in span:
            if " " in span:
                return None
            nth.append(span[1:])
            continue
        ends = [_parse_numbers(part) for part in span.split(" to ")]
        if len(ends) > 2:
            return None
        first, last = ends[0][0], ends[-1][-1]
        numbers |= set(ends[0]) if len(ends) == 1 else {(first + each) % 7 for each in range((last - first) % 7 + 1)}
    runs = split_runs(sorted(numbers))
    found = [f"{run[0]}-{run[-1]}" if len(run) >= SHORTEST_RUN else ",".join(map(str, run)) for run in runs]
    return f"* * {','.join([*found, *nth])}"


def _parse_numbers(code: str) -> list[int]:
    first, _, last = code[1:].partition("-")
    return list(range(int(first), int(last) + 1)) if last else [int(number) for number in code[1:].split(",")]


def offer(text: str) -> tuple[str, str] | None:
    """Return the expression that a phrase may mean, and its words without a zone; None if it is not understood."""
    expression = understand(text)
    if expression is None:
        return None
    every = parse_every(expression)
    return expression, describe_cron(Cron(expression)) if every is None else describe_every(every)
