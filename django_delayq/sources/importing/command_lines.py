"""Command lines of a crontab: their words, where all shells agree on them, and their secrets. Pure.

Note [Only plain lines are read]
cron passes the command to `sh`, which may be dash or bash. So a line is read only as far as it is plain: `cd` or
`source`, words, output redirections. A word with a character that may mean something to a shell has it in `special`,
and the caller decides whether that matters.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...text import HIDDEN, is_secret_name, redact_text

_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^ \t'"]|['"].*)+""", re.DOTALL)
_PIECE = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<plain>[^'"]+|['"].*)""", re.DOTALL)
_SPECIAL = {"single": "", "double": "$`\\", "plain": "'\"$`\\&|;<>()*?[]{}#~"}
_FILE = r"""(?:'[^']*'|"[^"]*"|[^ \t'"`\\&|;<>()#])+"""
_PREPARATION = re.compile(rf"(?:cd|\.|source)[ \t]+{_FILE}[ \t]*(?:&&|;)[ \t]*")
#: dash ends the command at `&>`, so that only other redirections may follow.
_OUTPUT = re.compile(rf"(?:[12]?|&)>>? ?{_FILE}|[12]?>&[12]")


class Word(NamedTuple):
    """A word as a program receives it, if no character in `special` has a meaning."""

    text: str
    special: str


def read_line(line: str) -> tuple[list[Word], list[str]]:
    """Return the words of a line, and what is left out of it. See Note [Only plain lines are read]."""
    left_out, line = [], line.strip(" \t")
    while prepared := _PREPARATION.match(line):
        left_out.append(prepared[0].rstrip(" \t;&"))
        line = line[prepared.end() :]
    words, output = _WORD.findall(line), list[str]()
    while count := next((count for count in (1, 2) if _OUTPUT.fullmatch(" ".join(words[-count:]))), 0):
        output.insert(0, " ".join(words[-count:]))
        del words[-count:]
    return [_read_word(word) for word in words], left_out + output


def _read_word(word: str) -> Word:
    text = special = ""
    for piece in _PIECE.finditer(word):
        kind = str(piece.lastgroup)
        text += piece[kind]
        special += "".join(character for character in piece[kind] if character in _SPECIAL[kind])
    return Word(text, special)


#: A word of a command line, also within a line that is quoted by Python or JSON.
_ANY = r"""(?P<value>(?:\\?"[^"]*"|\\?'[^']*'|[^\s'"\\]|\\.)(?:"[^"\s]*"|'[^'\s]*'|[^\s'"\\]|\\.)*)"""
_OPTION = re.compile(rf"""(?<![\w-])(?P<name>--?[A-Za-z][\w-]*["']?,?[ \t=]+|[A-Za-z]\w*=)(?![-<>|&;]){_ANY}""")
_USER = re.compile(rf"(?<![\w-])(?P<name>(?:-[uU]|--(?:[a-z]+-)?user)[ \t=]*){_ANY}")
#: Programs whose option -p takes a password.
_PROGRAMS = re.compile(r"\b(?:mysql|mariadb|mongo|sshpass)")
_PASSWORD = re.compile(rf"(?<![\w-])(?P<name>-p[ \t]?)(?![-<>|&;\s]){_ANY}")
#: Ends of names that are written as one word, such as PGPASSWORD.
_NAME = re.compile(r"(?i)(?:pass(?:word|wd|phrase)?|secret|token|apikey)$")


def hide_secrets(text: str) -> str:
    """Return a command line, or a message that quotes one, without secrets; it still works as a pattern of `--map`."""
    text = _OPTION.sub(lambda found: found["name"] + HIDDEN if _is_secret(found["name"]) else found[0], text)
    text = _USER.sub(_hide_password, text)
    if _PROGRAMS.search(text):
        text = _PASSWORD.sub(rf"\g<name>{HIDDEN}", text)
    return redact_text(text)


def hide_words(words: Sequence[Any]) -> list[Any]:
    shown = [hide_secrets(word) if isinstance(word, str) else word for word in words]
    options = [str(word).startswith("-") and "=" not in str(word) and _is_secret(str(word)) for word in ("", *words)]
    return [HIDDEN if option else word for option, word in zip(options, shown, strict=False)]


def _is_secret(name: str) -> bool:
    name = name.strip("-=, \t\"'")
    return is_secret_name(name) or bool(_NAME.search(name))


def _hide_password(found: re.Match[str]) -> str:
    user, colon, _ = found["value"].partition(":")
    if not colon:
        return found[0]
    return found["name"] + ("" if user[:1] in "\"'\\" else user + colon) + HIDDEN
