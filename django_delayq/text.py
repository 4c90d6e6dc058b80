"""Texts for people: secrets are hidden, control characters are written out, unknown names get a suggestion. Pure.

Note [What is redacted]
Only what is *shown* is redacted: logs, errors before they are stored, pages and commands. The database keeps arguments
and results as they are, since the task needs them, and so does the form of whoever may change the schedule, since
saving it would otherwise destroy them. A name is matched by its words: `DB_PASSWORD`, `apiKey` and `x-auth-token` are
secret, `tokenizer`, `author` and `keyboard` are not. What is hidden by mistake costs a look at the database; what is
shown by mistake costs a password.
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

#: Control characters, separators of lines, what turns the direction of writing, and bytes that are no text.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: What stands for a hidden value.
HIDDEN = "********"
#: A name with one of these words is secret.
SECRET_WORDS = frozenset((
    "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "tokens", "jwt",
    "otp", "apikey", "apikeys", "accesskey", "privatekey", "secretkey", "authorization", "auth", "bearer", "credential",
    "credentials", "session", "sessionid", "sessions", "cookie", "cookies", "signature", "dsn",
))  # fmt: skip
#: And one with two of these words side by side.
SECRET_PAIRS = frozenset((before, "key") for before in (
    "api", "access", "private", "secret", "signing", "encryption", "ssh", "master", "license", "account",
))  # fmt: skip
#: A text without any of these has no secret. Most lines of a log are such: to see that takes 2 µs, the look itself 28.
_TRACES = ("://", *(
    word for word in ("key", *sorted(SECRET_WORDS))
    if not any(other in word and other != word for other in ("key", *SECRET_WORDS))
))  # fmt: skip
#: A shorter secret argument is not looked for in texts: it would hide what only looks like it.
SHORTEST_SOUGHT = 4
#: Nor a shorter line of one that has several.
SHORTEST_LINE = 8
#: What is read of a text that is longer, from its end.
MOST_READ = 1_000_000
#: So few secrets are first looked for one by one, which is quicker where the text has none of them.
MOST_SOUGHT_ALONE = 100
#: The budget of a search: a comparison costs its length plus 100. When it is spent, the rest of the text is hidden.
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


def looks_secret(name: str) -> bool:
    """Say whether a value of this name is to be hidden: one of its words is in the lists above, whatever its case."""
    words = [word.lower() for word in _WORD.findall(name)]
    return not SECRET_WORDS.isdisjoint(words) or not SECRET_PAIRS.isdisjoint(pairwise(words))


def redact(value: Any) -> Any:
    """Return JSON with the values of secret names hidden, at any depth, and credentials taken out of its texts."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if looks_secret(str(key)) else redact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner) for inner in value]
    return _CREDENTIALS.sub(f"{HIDDEN}@", value) if isinstance(value, str) else value


def redact_arguments(
    args: Any, kwargs: Any, parameters: Sequence[inspect.Parameter] | None
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments as they may be shown. `parameters` are the task's; None where it is not known.

    Positional arguments have the names of their parameters. Where these are not known, all of them are hidden.
    """
    shown = [HIDDEN if is_secret else redact(value) for is_secret, value in _positional(args, parameters)]
    return shown, redact(kwargs) if isinstance(kwargs, dict) else {}


def secret_texts(args: Any, kwargs: Any, parameters: Sequence[inspect.Parameter] | None) -> list[str]:
    """Return the texts among the arguments that `redact_arguments` hides, for `redact_text` to look for."""
    found: list[str] = []
    for is_secret, value in _positional(args, parameters):
        _collect(value, found, hidden=is_secret)
    _collect(kwargs, found, hidden=False)
    return found


def redact_text(text: str, secrets: Sequence[str] = ()) -> str:
    """Return a message or traceback as it may be shown.

    Hidden are these secrets as they are or as Python, JSON and URLs write them, credentials in URLs, and the values of
    pairs such as `password=x`, `"token": "x"` and `Authorization: Bearer x`. Secrets have at least `SHORTEST_SOUGHT`
    characters. Of more than `MOST_READ` characters only the end is returned. What a task puts into its message by other
    words is not recognised.
    """
    text = _hide_known(text[-MOST_READ:], {spelling for value in secrets for spelling in _spellings(value)})
    if text.isascii():  # else the case of a letter is not that simple
        lowered = text.lower()
        if not any(trace in lowered for trace in _TRACES):
            return text
    text = _CREDENTIALS.sub(f"{HIDDEN}@", text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    return _hide_pairs(text)


def redact_signature(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature as it may be shown: without the defaults of secret parameters."""
    parameters = [
        item.replace(default=_Hidden())
        if item.default is not item.empty and item.default is not None and looks_secret(item.name)
        else item
        for item in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


class _Hidden:
    def __repr__(self) -> str:
        return HIDDEN


def _positional(args: Any, parameters: Sequence[inspect.Parameter] | None) -> list[tuple[bool, Any]]:
    """Return each of these arguments after whether it is secret, by the name of its parameter."""
    if not isinstance(args, list):
        return []
    names = [item.name for item in parameters or () if item.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]
    rest = next((item.name for item in parameters or () if item.kind == inspect.Parameter.VAR_POSITIONAL), None)
    named = zip_longest(names[: len(args)], args, fillvalue=rest)
    return [(name is None or looks_secret(name), value) for name, value in named]


def _collect(value: Any, found: list[str], *, hidden: bool) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _collect(inner, found, hidden=hidden or looks_secret(str(key)))
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, found, hidden=hidden)
    elif hidden and isinstance(value, str) and len(value) >= SHORTEST_SOUGHT:
        found.append(value)


def _spellings(value: str) -> set[str]:
    """Return a text as it is and as it may be written, also within a text that is written so again, and its lines."""
    once = {value, *_written(value)}
    lines = {line.strip() for line in value.splitlines()} - {value}
    return once.union(*map(_written, once), (line for line in lines if len(line) >= SHORTEST_LINE))


def _written(value: str) -> set[str]:
    as_python = repr(value)[1:-1], ascii(value)[1:-1], repr(value.encode(errors="replace"))[2:-1]
    as_json = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
    in_urls = (write(value, safe, errors="replace") for write in (quote, quote_plus) for safe in ("", "/"))
    return {*as_python, *as_json, *in_urls}


def _hide_known(text: str, known: set[str]) -> str:
    """Hide these texts in one pass, overlapping ones too."""
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
        if found.start() < done or exception or not looks_secret(found["name"]):  # InvalidToken: what happened
            continue
        value = _VALUE.match(text, found.end())
        if value is not None and not value[0].startswith(HIDDEN):
            mark = _QUOTE.match(value[0])
            around = mark[0] if mark else ""
            parts.append(f"{text[done : found.end()]}{around}{HIDDEN}{around}")
            done = value.end()
    return "".join(parts) + text[done:]


def plain(text: str, *, keep: str = "") -> str:
    """Return a text in which these characters, but those to `keep`, are written like `\\u001b`, as JSON has it.

    So nothing in it moves a cursor, forges a line, or cannot be encoded.
    """
    if text.isprintable():  # as nearly all are: that is seen in a tenth of the time
        return text
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


def iso(instant: datetime) -> str:
    """Return an instant in ISO 8601, in UTC to the ms."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the nearest of these, with a space before it; '' where none is near.

    Of dotted paths the last parts must be similar too: two functions of one module share most of their paths.
    """
    names = list(known)
    ends = get_close_matches(_end(name), {_end(each) for each in names}, n=max(1, len(names)))
    near = get_close_matches(name, [each for each in names if _end(each) in ends], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _end(path: str) -> str:
    return path.rpartition(".")[2]
