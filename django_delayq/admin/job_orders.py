"""What a person can do to jobs, and in which states; what it means is for `backend.operating` to say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy, ngettext_lazy

from ..backend import operating
from ..backend.listing import JobState, SeenJob
from ..backend.operating import Outcome

#: Of runs and jobs.
STOP_NOTE = gettext_lazy(
    "TaskCancelled is raised in the task within two seconds. It is recorded as failed and not tried again. Code that "
    "waits outside of Python is not interrupted: after the grace it is recorded without it, and its process replaced."
)


@dataclass(frozen=True, slots=True)
class Order:
    """Something that can be done to jobs in some states, by whoever has the permission."""

    name: str
    permission: str
    states: tuple[JobState, ...]
    do: Callable[..., Outcome]
    #: What the button and the list's action are called.
    label: Any
    label_of_action: Any
    note: Any
    #: What the log says, and what a person is told of so many jobs.
    logged: Any
    done: Any
    #: Does it to a durable job in the database, also without Redis; None where that is not for the database to say.
    by_row: Callable[[str], Outcome | None] = lambda wanted: None

    @property
    def action(self) -> str:
        """The name of the list's action; Django has one of this name, which ours replaces."""
        return "delete_selected" if self.name == "delete" else self.name.replace("-", "_")

    def fits(self, seen: SeenJob) -> bool:
        return seen.result_id is not None and seen.state in self.states and (self.name != "retry" or not seen.flaw)


ORDERS = {
    order.name: order
    for order in (
        Order(
            name="run-now", permission="change", states=(JobState.WAITING,), do=operating.run_now,
            label=gettext_lazy("Run now"), label_of_action=gettext_lazy("Run selected jobs now…"),
            note=gettext_lazy("A job that is run now waits for its turn instead of its time. Nothing else changes."),
            logged=gettext_lazy("Run now."), done=ngettext_lazy(
                "%(count)d job waits for its turn now.", "%(count)d jobs wait for their turn now.", "count"
            ),
        ),
        Order(
            name="cancel", permission="change", states=(JobState.WAITING, JobState.READY), do=operating.cancel,
            label=gettext_lazy("Cancel job"), label_of_action=gettext_lazy("Cancel selected jobs…"),
            note=gettext_lazy("A cancelled job is never executed. Its result is failed, with the error JobCancelled."),
            logged=gettext_lazy("Cancelled."),
            done=ngettext_lazy("%(count)d job is cancelled.", "%(count)d jobs are cancelled.", "count"),
        ),
        Order(
            name="stop", permission="change", states=(JobState.RUNNING,), do=operating.stop,
            label=gettext_lazy("Stop"), label_of_action=gettext_lazy("Stop selected jobs…"), note=STOP_NOTE,
            logged=gettext_lazy("Stop asked for."),
            done=ngettext_lazy("%(count)d job is being stopped.", "%(count)d jobs are being stopped.", "count"),
        ),
        Order(
            name="retry", permission="change", states=(JobState.DEAD,), do=operating.revive,
            by_row=operating.revive_row,
            label=gettext_lazy("Retry"), label_of_action=gettext_lazy("Retry selected jobs…"),
            note=gettext_lazy(
                "A retried job is executed as it was enqueued, with all attempts. Its errors are forgotten."
            ),
            logged=gettext_lazy("Retried."),
            done=ngettext_lazy("%(count)d job is tried again.", "%(count)d jobs are tried again.", "count"),
        ),
        Order(
            name="delete", permission="delete", states=(JobState.DEAD,), do=operating.delete,
            by_row=operating.delete_row,
            label=gettext_lazy("Delete"), label_of_action=gettext_lazy("Delete selected jobs…"),
            note=gettext_lazy("A deleted job is gone, with its arguments and its errors. Nothing brings it back."),
            logged=gettext_lazy("Deleted."),
            done=ngettext_lazy("%(count)d job is deleted.", "%(count)d jobs are deleted.", "count"),
        ),
    )
}  # fmt: skip

#: Why an order was not carried out.
LEFT = {
    Outcome.HELD: ngettext_lazy(
        "%(count)d job stays as it is: a worker holds it, so it runs or is about to.",
        "%(count)d jobs stay as they are: workers hold them, so they run or are about to.",
        "count",
    ),
    Outcome.GONE: ngettext_lazy(
        "%(count)d job is not there any more: it has ended, or somebody deleted it.",
        "%(count)d jobs are not there any more: they have ended, or somebody deleted them.",
        "count",
    ),
    Outcome.DEAD: ngettext_lazy(
        "%(count)d job stays as it is: it has died. Retry or delete it.",
        "%(count)d jobs stay as they are: they have died. Retry or delete them.",
        "count",
    ),
    Outcome.NOT_DEAD: ngettext_lazy(
        "%(count)d job stays as it is: it is not dead, somebody may have retried it.",
        "%(count)d jobs stay as they are: they are not dead, somebody may have retried them.",
        "count",
    ),
    Outcome.WAITING: ngettext_lazy(
        "%(count)d job is not running: cancel it, so that it does not start.",
        "%(count)d jobs are not running: cancel them, so that they do not start.",
        "count",
    ),
    Outcome.READY: ngettext_lazy(
        "%(count)d job is ready already: its turn comes without that.",
        "%(count)d jobs are ready already: their turns come without that.",
        "count",
    ),
    Outcome.KEY_TAKEN: ngettext_lazy(
        "%(count)d job stays as it is: another job with its unique key waits already.",
        "%(count)d jobs stay as they are: other jobs with their unique keys wait already.",
        "count",
    ),
    Outcome.UNREADABLE: ngettext_lazy(
        "%(count)d job cannot be retried: it is not signed with this project's key, or cannot be read.",
        "%(count)d jobs cannot be retried: they are not signed with this project's key, or cannot be read.",
        "count",
    ),
}
