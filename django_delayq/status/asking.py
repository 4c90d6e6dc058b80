"""A question to a server, asked in a thread of its own: a server that hangs holds up nothing but itself."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from django.db import connections

Answer = TypeVar("Answer")


class Asked(Generic[Answer]):
    """An answer to come. The thread is abandoned, not stopped, where it does not come in time."""

    def __init__(self, question: Callable[[], Answer]) -> None:
        self._question = question
        self._answer: list[Answer] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, name="delayq-status", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._answer.append(self._question())
        except Exception as error:
            self._error = error
        finally:
            connections.close_all()

    def get(self, deadline: float) -> Answer:
        """Return the answer.

        Raises:
            TimeoutError: There was none by `deadline`, a monotonic second.
            Exception: What the question raised.
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._error is not None:
            raise self._error
        if not self._answer:
            raise TimeoutError
        return self._answer[0]
