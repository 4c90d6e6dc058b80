"""What a step is, and what can go wrong in the middle of one."""

from dataclasses import dataclass, field
from functools import wraps
from typing import Any


class Killed(BaseException):
    """The process that acts is gone. No code of the package catches it."""


class Violation(AssertionError):
    """An invariant does not hold. `name` is the invariant's."""

    def __init__(self, name: str, details: str) -> None:
        super().__init__(f"{name}: {details}")
        self.name = name


class Broken(BaseException):
    """A violation on its way out of the package, which must not catch it. `name` is the invariant's."""

    def __init__(self, name: str, *details: object) -> None:
        super().__init__(name, *details)
        self.name, self.details = name, ", ".join(map(repr, details))


@dataclass
class Fault:
    """The `nth` time the step passes `seam`: what happens.

    Seams are the names of `failpoints` and, for each script, `send:<script>` (not executed yet) and `reply:<script>`
    (executed, the caller does not know). Effects: `kill`; `lose` (the request or its reply is lost); `database` (the
    database fails, or only its reply to the COMMIT is lost); `pause`: others do `steps`, then it goes on.
    """

    seam: str
    effect: str
    nth: int = 1
    steps: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    passed: int = field(default=0, repr=False)


def step(method):
    """Make a method a step: it may be struck by a `fault`, and the invariants are checked after it.

    Raises:
        Violation: An invariant does not hold.
    """

    @wraps(method)
    def wrapper(self, *args, fault=None, **kwargs):
        outermost, self.inside = not self.inside, True
        self.stage.seen["steps"] += 1
        try:
            with self.planned(fault):
                method(self, *args, **kwargs)
            self.invariants.after_step()
        except Broken as found:
            self.over = True
            if outermost:
                raise Violation(found.name, found.details) from found
            raise
        except Exception as error:
            self.over = True
            if outermost:
                raise
            raise Broken("an error that nobody foresaw", error) from error
        finally:
            self.inside = not outermost

    return wrapper
