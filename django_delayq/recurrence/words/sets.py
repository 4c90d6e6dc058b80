"""Sets of numbers in words: "1, 2 and 5 to 9", "0 to 56 in steps of 7". Knows neither clock nor calendar."""

from collections.abc import Callable, Sequence

from django.utils.translation import gettext as _

#: Fewer values are listed, not called a run or a series of steps.
SHORTEST_RUN = 3
SHORTEST_SERIES = 4


def values_of(mask: int) -> list[int]:
    """Return the positions of the set bits, ascending."""
    return [position for position in range(mask.bit_length()) if mask >> position & 1]


def join(parts: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    if len(parts) == 1:
        return parts[0]
    return _("%(some)s and %(last)s") % {"some": ", ".join(parts[:-1]), "last": parts[-1]}


def span(first: str, last: str) -> str:
    """Return "a to b"."""
    return _("%(first)s to %(last)s") % {"first": first, "last": last}


def shown(values: Sequence[int], name: Callable[[int], str] = str) -> str:
    """Return ascending values as runs, single ones, or one series of steps. Other values, other words."""
    step = values[1] - values[0] if len(values) >= SHORTEST_SERIES else 1
    if step > 1 and list(values) == list(range(values[0], values[-1] + 1, step)):
        return _("%(span)s in steps of %(step)d") % {"span": span(name(values[0]), name(values[-1])), "step": step}
    return join([text for run in runs(values) for text in said(run, name)])


def runs(values: Sequence[int]) -> list[list[int]]:
    """Split ascending values into stretches without a hole."""
    found: list[list[int]] = []
    for value in values:
        if found and found[-1][-1] == value - 1:
            found[-1].append(value)
        else:
            found.append([value])
    return found


def said(run: Sequence[int], name: Callable[[int], str]) -> list[str]:
    """Return a stretch as one span, a short one value by value."""
    return [span(name(run[0]), name(run[-1]))] if len(run) >= SHORTEST_RUN else [name(value) for value in run]
