"""Texts of others on their way to a terminal or a log line: control characters are written out. Hides nothing."""

import re
from datetime import UTC, datetime

#: Control characters, separators of lines, what turns the direction of writing, and bytes that are no text.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


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
