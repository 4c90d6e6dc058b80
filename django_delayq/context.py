"""The context of a schedule's runs. Imports no model, because tasks may be imported before the apps are loaded."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from .calls.context import ExecutionContext

if TYPE_CHECKING:
    from .models import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(ExecutionContext):  # type: ignore[misc]
    """The context of a task that a schedule runs: `schedule` as at the start, `due_at` the nominal instant (UTC)."""

    schedule: "Schedule"
    due_at: datetime
