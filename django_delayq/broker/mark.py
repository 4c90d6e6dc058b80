"""A mark in Redis by which one process at a time does what would else only be done several times."""

from typing import Any, Protocol

from .scripts import text


class Asks(Protocol):
    """What a mark needs of a broker."""

    def ask(self, command: str, *args: Any, **options: Any) -> Any:
        """Carry a command out."""


class Mark:
    """Ends by itself where it is not renewed. It only saves work, and guards nothing."""

    def __init__(self, broker: Asks, key: str) -> None:
        self._broker, self._key = broker, key

    def begin(self, token: str, *, ttl_ms: int) -> bool:
        """Set the mark, unless another one stands; say whether it was set.

        A mark that never ends was damaged: it is nobody's, and would keep everybody away.
        """
        if self._broker.ask("set", self._key, token, nx=True, px=ttl_ms):
            return True
        if self._broker.ask("pttl", self._key) != -1:
            return False
        self._broker.ask("delete", self._key)
        return bool(self._broker.ask("set", self._key, token, nx=True, px=ttl_ms))

    def keep(self, token: str, *, ttl_ms: int) -> bool:
        """Let the mark stand for longer; False where it is another's or gone.

        Not atomic: a mark that changes hands in between stands for longer too.
        """
        return self.read() == token and bool(self._broker.ask("pexpire", self._key, ttl_ms))

    def end(self, token: str) -> None:
        """Take the mark away where it still is this one."""
        if self.read() == token:
            self._broker.ask("delete", self._key)

    def read(self) -> str | None:
        """Return the token that stands."""
        value = self._broker.ask("get", self._key)
        return None if value is None else text(value)
