"""Texts for users: hides secrets, escapes control characters, suggests names. Pure.

Note [Stored arguments and results are not redacted]
Logs, pages and commands are redacted, and errors and output before they are stored. The database keeps arguments and
results in clear, because tasks need them. The form shows arguments in clear to users who may change the schedule,
because saving hidden values would destroy them. A name is matched by its words: `DB_PASSWORD` and `apiKey` are secret,
`tokenizer` and `keyboard` are not.
"""

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import pairwise, zip_longest
from typing import Any
from urllib.parse import quote, quote_plus

#: Control characters, line separators, changes of writing direction, and bytes that are not text.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HIDDEN = "********"
#: A name with one of these words is secret.
SECRET_WORDS = frozenset((
    "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "tokens", "jwt",
    "otp", "apikey", "apikeys", "accesskey", "privatekey", "secretkey", "authorization", "auth", "bearer", "credential",
    "credentials", "session", "sessionid", "sessions", "cookie", "cookies", "signature", "dsn",
))  # fmt: skip
#: So is a name with one of these pairs of adjacent words.
SECRET_PAIRS = frozenset((before, "key") for before in (
    "api", "access", "private", "secret", "signing", "encryption", "ssh", "master", "license", "account",
))  # fmt: skip
#: A text without any of these has no secret. This check takes 2 µs per line of a log, the full search 28 µs.
_TRACES = ("://", *(
    word for word in ("key", *sorted(SECRET_WORDS))
    if not any(other in word and other != word for other in ("key", *SECRET_WORDS))
))  # fmt: skip
#: Minimum characters of a secret argument to search for: a shorter one would hide unrelated text.
SHORTEST_SOUGHT = 4
#: Minimum characters of a line to search for, in a secret of several lines.
SHORTEST_LINE = 8
#: Maximum characters read from a text, from its end.
MOST_READ = 1_000_000
#: Maximum secrets that are first searched one by one, which is faster if the text has none of them.
MOST_SOUGHT_ALONE = 100
#: Budget of a search: a comparison costs its length plus 100. Beyond it, the rest of the text is hidden.
MOST_COMPARED = 1_000_000_000

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s\"'<>]*@")
_HEADER = re.compile(r"(?i)(?<![\w-])((?:proxy-)?authorization|(?:set-)?cookie)(\s?:\s?)(?=[^\s\"'])[^\r\n]+")
_NAME = re.compile(
    r"""(?<![\w-])(?:\\{0,3}["'])?(?P<name>[\w-]{1,64})(?P<close>\\{0,3}["'])?(?P<sign>\s{0,3}[:=]{1,2}>?\s{0,3})"""
)
_VALUE = re.compile(
    r""" "(?:[^"\\\r\n]|\\.)*" | '(?:[^'\\\r\n]|\\.)*' | \\{1,3}(?P<mark>["'])[^\r\n]*?\\{1,3}(?P=mark)
    | [bfru]{1,2}"(?:[^"\\\r\n]|\\.)*" | [bfru]{1,2}'(?:[^'\\\r\n]|\\.)*' | [\w.]*[\[({][^\[\](){}\r\n]*[\])}]
    | (?:Bearer|Basic|Digest|Token)\s[^\s"',;)}\]]+ | [^\s"',;&()\[\]{}]+""",
    re.VERBOSE,
)
_QUOTE = re.compile(r"\\{0,3}[\"']")
_CLASS = re.compile(r"[A-Z]\w*[a-z][A-Z]")


def is_secret_name(name: str) -> bool:
    """Return whether to hide a value of this name: one of its words is in the lists above, in any case."""
    words = [word.lower() for word in _WORD.findall(name)]
    return not SECRET_WORDS.isdisjoint(words) or not SECRET_PAIRS.isdisjoint(pairwise(words))


def redact(value: Any) -> Any:
    """Return JSON with the values of secret names hidden at any depth, and credentials removed from texts."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if is_secret_name(str(key)) else redact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner) for inner in value]
    return _CREDENTIALS.sub(f"{HIDDEN}@", value) if isinstance(value, str) else value


def redact_arguments(
    args: Any, kwargs: Any, parameters: Sequence[inspect.Parameter] | None
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments for display, hidden by the names of the task's `parameters`; None hides all positional ones."""
    shown = [HIDDEN if is_secret else redact(value) for is_secret, value in _mark_positional(args, parameters)]
    return shown, redact(kwargs) if isinstance(kwargs, dict) else {}


def find_secret_texts(args: Any, kwargs: Any, parameters: Sequence[inspect.Parameter] | None) -> list[str]:
    """Return the texts among the arguments that `redact_arguments` hides, as the `secrets` of `redact_text`."""
    found: list[str] = []
    for is_secret, value in _mark_positional(args, parameters):
        _collect(value, found, hidden=is_secret)
    _collect(kwargs, found, hidden=False)
    return found


def redact_text(text: str, secrets: Sequence[str] = ()) -> str:
    """Return a message or traceback for display.

    Hides `secrets`, as they are or as Python, JSON and URLs write them, credentials in URLs, and the values of pairs
    such as `password=x` and `"token": "x"`. Only the last `MOST_READ` characters are returned.
    """
    text = _hide_known(text[-MOST_READ:], {spelling for value in secrets for spelling in _list_spellings(value)})
    if text.isascii():  # otherwise upper and lower case are less simple
        lowered = text.lower()
        if not any(trace in lowered for trace in _TRACES):
            return text
    text = _CREDENTIALS.sub(f"{HIDDEN}@", text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    return _hide_pairs(text)


def redact_signature(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature for display: without the defaults of secret parameters."""
    parameters = [
        item.replace(default=_Hidden())
        if item.default is not item.empty and item.default is not None and is_secret_name(item.name)
        else item
        for item in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


class _Hidden:
    def __repr__(self) -> str:
        return HIDDEN


def _mark_positional(args: Any, parameters: Sequence[inspect.Parameter] | None) -> list[tuple[bool, Any]]:
    """Return each argument with whether it is secret, by the name of its parameter."""
    if not isinstance(args, list):
        return []
    names = [item.name for item in parameters or () if item.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]
    rest = next((item.name for item in parameters or () if item.kind == inspect.Parameter.VAR_POSITIONAL), None)
    named = zip_longest(names[: len(args)], args, fillvalue=rest)
    return [(name is None or is_secret_name(name), value) for name, value in named]


def _collect(value: Any, found: list[str], *, hidden: bool) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _collect(inner, found, hidden=hidden or is_secret_name(str(key)))
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, found, hidden=hidden)
    elif hidden and isinstance(value, str) and len(value) >= SHORTEST_SOUGHT:
        found.append(value)


def _list_spellings(value: str) -> set[str]:
    """Return a text, its escaped forms, those escaped once more, and its lines."""
    once = {value, *_list_escapes(value)}
    lines = {line.strip() for line in value.splitlines()} - {value}
    return once.union(*map(_list_escapes, once), (line for line in lines if len(line) >= SHORTEST_LINE))


def _list_escapes(value: str) -> set[str]:
    as_python = repr(value)[1:-1], ascii(value)[1:-1], repr(value.encode(errors="replace"))[2:-1]
    as_json = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
    in_urls = (write(value, safe, errors="replace") for write in (quote, quote_plus) for safe in ("", "/"))
    return {*as_python, *as_json, *in_urls}


def _hide_known(text: str, known: set[str]) -> str:
    """Hide these texts in one pass, including overlapping ones."""
    if len(known) <= MOST_SOUGHT_ALONE:
        known = {each for each in known if each in text}
    if not known:
        return text
    lengths: dict[str, list[int]] = {}
    for length, begin in sorted({(len(each), each[:SHORTEST_SOUGHT]) for each in known}, reverse=True):
        lengths.setdefault(begin, []).append(length)
    parts, done, end, compared = list[str](), 0, 0, 0
    for at in range(len(text)):
        for length in lengths.get(text[at : at + SHORTEST_SOUGHT], ()):
            compared += 100 + length
            if text[at : at + length] in known:
                if at >= end:
                    parts += text[done:at], HIDDEN
                done = end = max(end, at + length)
                break
        if compared > MOST_COMPARED:
            return "".join(parts) + (text[done:at] + HIDDEN if at >= end else "")
    return "".join(parts) + text[done:]


def _hide_pairs(text: str) -> str:
    parts, done = [], 0
    for found in _NAME.finditer(text):
        exception = ":" in found["sign"] and not found["close"] and _CLASS.match(found["name"])
        if found.start() < done or exception or not is_secret_name(found["name"]):  # "InvalidToken: …" is an exception
            continue
        value = _VALUE.match(text, found.end())
        if value is not None and not value[0].startswith(HIDDEN):
            mark = _QUOTE.match(value[0])
            around = mark[0] if mark else ""
            parts.append(f"{text[done : found.end()]}{around}{HIDDEN}{around}")
            done = value.end()
    return "".join(parts) + text[done:]


def escape_text(text: str, *, keep: str = "") -> str:
    """Escape unprintable characters except `keep` as JSON does, so that a text moves no cursor and forges no line."""
    if text.isprintable():  # true for nearly all texts, and ten times as fast
        return text
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


def format_iso(instant: datetime) -> str:
    """Return an instant in ISO 8601, in UTC to the ms."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest known name, after a space; '' for none. Its last part must be similar too."""
    names = list(known)
    ends = get_close_matches(_get_end(name), {_get_end(each) for each in names}, n=max(1, len(names)))
    near = get_close_matches(name, [each for each in names if _get_end(each) in ends], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _get_end(path: str) -> str:
    return path.rpartition(".")[2]
