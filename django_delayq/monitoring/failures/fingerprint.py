"""The title of an error without what differs from one time to the next, and a name for what has it in common.

Note [What is left out]
Quoted texts, numbers, dates, UUIDs, and words of hexadecimal digits or of letters and digits at random: they say of
which row, user or request it was. The class of the error stays as it is, digits and all. A title is cut where it is
stored, and a quotation that has lost its end so is one to the end. Two errors are the same if nothing else differs in
the first `MOST_KEPT` characters of what is left: so much is left of the longest title, wherever that was cut.
"""

import hashlib
import re

#: So much of a fingerprint counts.
MOST_KEPT = 120
#: A title of so many characters may have been cut: `MAX_TITLE_CHARS` of `worker/calling.py`.
_CUT_AT = 200
QUOTED, NUMBER = "'…'", "#"

_CLASS = re.compile(r"[^\W\d][\w.]*(?=: |$)")
_QUOTES = re.compile(r"""(?<!\w)[bfruBFRU]{0,2}(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)|“[^”]*”|«[^»]*»|`[^`]*`""")
_OPEN_QUOTE = re.compile(r"""(?<![\w…])[bfruBFRU]{0,2}['"“«`][^'"”»`]*\Z""")
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_HEX = r"0[xX][0-9a-fA-F]+|(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}"
_RANDOM = r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{16,}"
_WORDS = re.compile(rf"(?<![A-Za-z0-9])(?:{_UUID}|{_HEX}|{_RANDOM})(?![A-Za-z0-9])")
_NUMBERS = re.compile(r"(?:(?<![\w)\]])[-+])?\d+(?:[.,:/-]\d+)*(?:[eE][-+]?\d+(?!\w))?")
_SEVERAL = re.compile(rf"({NUMBER}|{QUOTED})(?:,\s?\1)+")


def fingerprint(title: str) -> str:
    """Return what the titles of all such errors have in common. See Note [What is left out].

    What is secret in a title is not hidden, but for what stands in quotes.
    """
    line = " ".join(title[:_CUT_AT].split())
    head = _CLASS.match(line)
    begin = head.end() if head else 0
    rest = _QUOTES.sub(QUOTED, line[begin:])
    if len(title) >= _CUT_AT:
        rest = _OPEN_QUOTE.sub(QUOTED, rest)
    rest = _NUMBERS.sub(NUMBER, _WORDS.sub(NUMBER, rest))
    return (line[:begin] + _SEVERAL.sub(r"\1", rest))[:MOST_KEPT]


def digest_of(kind: str, task: str, text: str) -> str:
    """Return the name of a group: the same for the same kind, task and fingerprint, as an address may have it."""
    return hashlib.sha256("\0".join((kind, task, text)).encode(errors="replace")).hexdigest()[:32]
