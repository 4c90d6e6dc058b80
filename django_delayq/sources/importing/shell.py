"""Splits a command line into words as a POSIX shell does. Pure; expands nothing.

Note [Words that a shell changes]
cron passes the command to `sh`, which may be dash or bash. A word is plain if both pass the same text to the program.
Otherwise `means` says what the word is to a shell, and the caller decides whether that matters. Output redirections
and a comment are removed; their text is kept in `left_out`.
"""

import re
from typing import NamedTuple

from .entry import Refused

#: Meanings of words that a shell changes.
HOME, VALUE, FILES, BRACES, OPERATOR = "a home directory", "a value", "a pattern of files", "braces", "an operator"
_PIECE = re.compile(
    r"""(?P<blank>[ \t]+) | (?P<operator>&>>?|>[>&|]?|&&|\|\||[&|;()<]) | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\]|\\.)*)" | \\(?P<escaped>.) | (?P<plain>[^ \t'"\\&|;()<>]+)""",
    re.VERBOSE | re.DOTALL,
)
_MEANINGS = ((VALUE, re.compile(r"\$")), (FILES, re.compile(r"[*?[]")), (BRACES, re.compile("[{}]")))
_VALUE, _COMMAND = re.compile(r"(?<!\\)\$"), re.compile(r"(?<!\\)`")
_HOME = re.compile("[=:]~")
_ESCAPED = re.compile(r"\\([$\"`])")
_COPY = re.compile("[0-9]+|-")


class Word(NamedTuple):
    """A word or an operator; `means` is '' for a plain word."""

    text: str
    means: str = ""


class Line(NamedTuple):
    """A parsed line. `left_out` has its output redirections and its comment as written."""

    words: list[Word]
    left_out: list[str]


def read(line: str) -> Line:
    """Return the words of a line. See Note [Words that a shell changes].

    Raises:
        Refused: Shells disagree about the line, or it is incomplete.
    """
    if "\\\\" in line:
        raise Refused(r"some versions of cron make one backslash of \\, others do not")
    return _Reader(line).read()


class _Reader:
    def __init__(self, line: str) -> None:
        self.line = line
        self.words: list[Word] = []
        self.left_out: list[str] = []
        self.begin = self.at = 0  #: Offset of the current word, and the position in the line.
        self.text: str | None = None  #: The current word as a program receives it; None between words.
        self.means = ""
        self.redirects: int | None = None  #: Offset of a redirection whose target has not been read yet.
        self.operator = ""
        self.ended = False

    def read(self) -> Line:
        while self.at < len(self.line):
            if self.text is None and self.line[self.at] == "#":
                self._missing_target()
                self.left_out.append(self.line[self.at :].rstrip())
                break
            piece = _PIECE.match(self.line, self.at)
            if piece is None:
                raise Refused(f"{self.line[self.at]} has no end")
            kind = str(piece.lastgroup)
            if kind == "operator":
                self._operator(piece[0])
            elif kind == "blank":
                self._end_word()
            else:
                self._piece(kind, piece[kind])
            self.at = piece.end()
        self._end_word()
        self._missing_target()
        return Line(self.words, self.left_out)

    def _piece(self, kind: str, text: str) -> None:
        if self.text is None:
            self.begin, self.text, self.means = self.at, "", ""
        if kind in ("double", "plain") and _COMMAND.search(text):
            raise Refused("` begins a command within the command")
        if kind == "double":
            self.means = VALUE if _VALUE.search(text) else self.means
            text = _ESCAPED.sub(r"\1", text)
        elif kind == "plain":
            home = (self.at == self.begin and text[0] == "~") or _HOME.search(text)
            self.means = self.means or (HOME if home else "")
            self.means = next((means for means, found in _MEANINGS if found.search(text)), self.means)
        self.text += text

    def _operator(self, text: str) -> None:
        digits = self.line[self.begin : self.at] if self.text is not None else ""
        if text[0] not in "<>" or not (digits.isascii() and digits.isdigit()):
            self._end_word()
            digits = ""
        elif len(digits) > 1:
            raise Refused(
                f"bash reads {digits}{text} as a descriptor, dash reads {digits} as a word: put a space there"
            )
        self.text = None
        self._missing_target()
        if ">" in text:
            self.redirects, self.operator = self.at - len(digits), text
            self.ended = self.ended or text[0] == "&"
        else:
            self._add(Word(text, OPERATOR))

    def _end_word(self) -> None:
        if self.text is None:
            return
        if self.redirects is None:
            self._add(Word(self.text, self.means))
        elif self.operator == ">&" and not _COPY.fullmatch(self.line[self.begin : self.at]):
            raise Refused("bash and dash read >& differently in front of a file: write > FILE 2>&1")
        else:
            self.left_out.append(self.line[self.redirects : self.at])
        self.text = self.redirects = None

    def _add(self, word: Word) -> None:
        if self.ended:
            raise Refused("dash ends the command at &>, bash does not: write > FILE 2>&1")
        self.words.append(word)

    def _missing_target(self) -> None:
        if self.redirects is not None:
            raise Refused(f"{self.operator} names no file")
