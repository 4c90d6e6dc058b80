"""A thread that looks on while a block runs."""

import threading
from typing import Self


class Background:
    """As a context manager: runs `watch` in a thread, which returns soon after `ended` is set."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self.watch, name=type(self).__name__, daemon=True)

    def watch(self) -> None:
        """Look on until `ended`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.ended.set()
        self._thread.join()
