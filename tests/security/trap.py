"""A module that nobody may import, and a function that nobody may call, because something in Redis names them."""

SPRUNG: list[str] = ["imported"]


def spring(*args: object, **kwargs: object) -> None:
    """Tell that it was called."""
    SPRUNG.append("called")
