"""Reads the pauses, limits and stop requests of users, in the form that workers need."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ..calls.registry import current_name
from ..models import Control, Run
from .bulk import database


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The paused queues and tasks, by current names, each with the reason; and the limits of queues."""

    queues: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)

    @property
    def paused(self) -> Collection[tuple[str, str]]:
        """(kind, name) of each paused queue or task."""
        return {("queue", name) for name in self.queues} | {("task", name) for name in self.tasks}


def held_back() -> list[Control]:
    """Return the pauses and limits that are in force."""
    return list(Control.objects.using(database()).in_force())


def read_held_back() -> HeldBack:
    """Return the pauses and limits that are in force, by name, with one query."""
    queues, tasks, most = dict[str, str](), dict[str, str](), dict[str, int]()
    for row in held_back():
        if row.is_paused():
            if row.kind == Control.Kind.QUEUE:
                queues[row.name] = row.reason
            else:
                tasks[current_name(row.name)] = row.reason
        if row.most is not None and row.kind == Control.Kind.QUEUE:
            most[row.name] = row.most
    return HeldBack(queues, tasks, most)


def read_stop_requests(runs: Collection[int]) -> dict[int, str]:
    """Return which of these runs to stop, by primary key, each with the user who requested it."""
    rows = Run._base_manager.using(database()).filter(pk__in=list(runs), stop_requested_at__isnull=False)
    return dict(rows.values_list("pk", "stop_requested_by"))
