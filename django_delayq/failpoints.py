"""Named places of the code at which the tests end, stop or delay a process. Does nothing by itself."""


def reach(name: str) -> None:
    """Pass by. The tests put another function in its place."""
