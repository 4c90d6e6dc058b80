"""Declares schedules as if they stood in a task module: what one release of the code says, and the next."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from django_delayq.calls import decorators

TASKS = "tests.app.tasks"
BEGIN = "from datetime import UTC, datetime, timedelta\nfrom django_delayq import periodic\n"


class Code:
    """The declarations of a test; each call of `says` is the next release, which has none of the former ones."""

    def __init__(self) -> None:
        self.before = decorators.list_declared()

    def says(self, source: str = "", module: str = TASKS) -> None:
        """Run this at the end of a module, where its names are known; it leaves no names behind."""
        self.forget()
        self.adds(source, module)

    def adds(self, source: str, module: str = TASKS) -> None:
        """Run this too."""
        names = dict(vars(importlib.import_module(module)))
        exec(compile(BEGIN + source, f"<{module}>", "exec"), names)  # noqa: S102 - our own text

    def forget(self) -> None:
        """Take back everything that was declared since the beginning."""
        for each in decorators.list_declared():
            if each not in self.before:
                del decorators._made[each.module, each.task, each.key]


@contextmanager
def declaring() -> Iterator[Code]:
    """Give what is declared an end."""
    code = Code()
    try:
        yield code
    finally:
        code.forget()
