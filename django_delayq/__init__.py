"""A scheduler for Django: schedules edited in the admin, run by equal workers, coordinated by Redis only."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calls.decorators import periodic
    from .calls.isolation import isolated
    from .context import RunContext

__version__ = "0.1.0"
__all__ = ["RunContext", "__version__", "isolated", "periodic"]


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that importing `django_delayq.recurrence` does not import Django.
    if name == "RunContext":
        from .context import RunContext

        return RunContext
    if name == "periodic":
        from .calls.decorators import periodic

        return periodic
    if name == "isolated":
        from .calls.isolation import isolated

        return isolated
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
