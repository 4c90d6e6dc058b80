"""What people hold back or want to be stopped at the moment, as workers need it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ..calls.registry import current_name
from ..models import Cancellation, Control
from .bulk import database


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Which queues, and tasks by their present names, are paused, each with the reason, and the limits of queues."""

    queues: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)

    @property
    def paused(self) -> Collection[tuple[str, str]]:
        """Kind and name of each that is paused."""
        return {("queue", name) for name in self.queues} | {("task", name) for name in self.tasks}


def held_back() -> list[Control]:
    """Return the rows that hold something back now.

    Raises:
        django.db.Error: Nothing is known.
    """
    return list(Control.objects.using(database()).in_force())


def read_held_back() -> HeldBack:
    """Read it in one query.

    Raises:
        django.db.Error: Nothing is known.
    """
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


def read_cancellations(runs: Collection[int]) -> dict[int, str]:
    """Return which of these runs are to be stopped, by primary key, each with the user who has asked for it.

    Raises:
        django.db.Error: Nothing is known.
    """
    rows = Cancellation.objects.using(database()).filter(run__in=list(runs))
    return dict(rows.values_list("run", "asked_by"))
