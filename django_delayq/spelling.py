"""What somebody may have meant who wrote a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


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
