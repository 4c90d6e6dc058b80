"""Hides secrets in command lines: values of options, which `redact_text` does not recognise. Pure."""

import re
from collections.abc import Sequence
from typing import Any

from ...text import HIDDEN, looks_secret, redact_text

#: A word of a command line, also within a line that is quoted by Python or JSON.
_WORD = r"""(?P<value>(?:\\?"[^"]*"|\\?'[^']*'|[^\s'"\\]|\\.)(?:"[^"\s]*"|'[^'\s]*'|[^\s'"\\]|\\.)*)"""
_OPTION = re.compile(rf"""(?<![\w-])(?P<name>--?[A-Za-z][\w-]*["']?,?[ \t=]+|[A-Za-z]\w*=)(?![-<>|&;]){_WORD}""")
_USER = re.compile(rf"(?<![\w-])(?P<name>(?:-[uU]|--(?:[a-z]+-)?user)[ \t=]*){_WORD}")
#: Programs whose option -p takes a password.
_PROGRAMS = re.compile(r"\b(?:mysql|mariadb|mongo|sshpass)")
_PASSWORD = re.compile(rf"(?<![\w-])(?P<name>-p[ \t]?)(?![-<>|&;\s]){_WORD}")
#: Ends of names that are written as one word, such as PGPASSWORD.
_NAME = re.compile(r"(?i)(?:pass(?:word|wd|phrase)?|secret|token|apikey)$")


def hide_secrets(text: str) -> str:
    """Return a command line, or a message that quotes one, without secrets.

    Hides values of options and variables with secret names, the password of `-u USER:PASSWORD`, and what `redact_text`
    hides. The result still matches the line as a pattern of `--map`.
    """
    text = _OPTION.sub(lambda found: found["name"] + HIDDEN if _is_secret(found["name"]) else found[0], text)
    text = _USER.sub(_hide_password, text)
    if _PROGRAMS.search(text):
        text = _PASSWORD.sub(rf"\g<name>{HIDDEN}", text)
    return redact_text(text)


def hide_words(words: Sequence[Any]) -> list[Any]:
    """Return a command's arguments without secrets."""
    shown = [hide_secrets(word) if isinstance(word, str) else word for word in words]
    options = [str(word).startswith("-") and "=" not in str(word) and _is_secret(str(word)) for word in ("", *words)]
    return [HIDDEN if option else word for option, word in zip(options, shown, strict=False)]


def _is_secret(name: str) -> bool:
    name = name.strip("-=, \t\"'")
    return looks_secret(name) or bool(_NAME.search(name))


def _hide_password(found: re.Match[str]) -> str:
    user, colon, _ = found["value"].partition(":")
    if not colon:
        return found[0]
    return found["name"] + ("" if user[:1] in "\"'\\" else user + colon) + HIDDEN
