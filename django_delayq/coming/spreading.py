"""Expressions that spread: a fixed minute becomes `H`, which each schedule's name makes into a minute of its own."""

from ..timing.dialect import MACROS


def with_hash(cron: str) -> str | None:
    """Return an expression with `H` in place of its minute; None where that is not one fixed number.

    Whether the result is a usable recurrence is for the model to say.
    """
    words = cron.split()
    if len(words) == 1:
        words = MACROS.get(words[0].upper(), "").split()
    at = len(words) - 5
    if at not in (0, 1) or not (words[at].isascii() and words[at].isdecimal()):
        return None
    return " ".join([*words[:at], "H", *words[at + 1 :]])
