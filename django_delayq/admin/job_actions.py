"""What a person can do to jobs: cancel, run now, retry, delete. Each is a POST with a permission, after a page that
asks; what it means is for `backend.operating` to say.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy
from django.views.decorators.http import require_http_methods

from ..backend import operating
from ..backend.listing import JobState, SeenJob
from ..backend.operating import Outcome
from ..broker import Broker
from ..broker.web import ask
from ..exceptions import BrokerError, ForeignLayout
from ..models import RedisJob
from ..plain import plain
from .base import BaseAdmin
from .job_list import failure, find, state_of

#: So many jobs are changed at once.
MOST_SELECTED = 100
#: So many of them are named on the page that asks.
NAMES_SHOWN = 20


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


def _action(order: Order) -> Callable[..., HttpResponse | None]:
    """Return the action of the list: it asks, then does it to each."""

    @admin.action(permissions=[order.permission], description=order.label_of_action)
    def act(model_admin: "JobActions", request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return model_admin.order_several(request, ORDERS[order.name])

    act.__name__ = order.action
    return act


class JobActions(BaseAdmin):
    """The actions of the list, and the same as buttons of a job's page."""

    actions = tuple(map(_action, ORDERS.values()))

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return what can be done to jobs of the state that is listed. Django has told the location since 6.1."""
        given = {} if action_location is None else {"action_location": action_location}
        fitting = {order.action for order in ORDERS.values() if state_of(request) in order.states}
        found = super().get_actions(request, **given)
        return {name: action for name, action in found.items() if name in fitting}

    def order_urls(self) -> list[URLPattern]:
        take = require_http_methods(["GET", "HEAD", "POST"])
        return [
            self.route(f"<path:object_id>/{name}/", take(partial(self.order_view, order=order)), name)
            for name, order in ORDERS.items()
        ]

    def order_view(self, request: HttpRequest, object_id: str, order: Order) -> HttpResponse:
        """Ask (GET), or do it to one job (POST)."""
        if not self._may(request, order):
            raise PermissionDenied
        wanted = unquote(object_id)
        back = HttpResponseRedirect(f"{self.address('changelist')}?state={order.states[0].value}")
        if request.method == "POST":
            self._do(request, order, [wanted])
            return back
        try:
            row = find(wanted)
        except (BrokerError, ForeignLayout) as error:
            return self.away(request, error)
        if row is None:
            self.message_user(request, _("There is no such job; it may have ended meanwhile."), messages.WARNING)
            return back
        return self._ask(request, order, [str(row)], 1, [], self.address("change", wanted))

    def order_several(self, request: HttpRequest, order: Order) -> HttpResponse | None:
        """Ask, or do it to the chosen jobs once it is confirmed."""
        chosen = list(dict.fromkeys(request.POST.getlist(ACTION_CHECKBOX_NAME)))
        if len(chosen) > MOST_SELECTED:
            text = _("At most %(most)d jobs are changed at once, and these are %(count)d. Nothing was done.")
            self.message_user(request, text % {"most": MOST_SELECTED, "count": len(chosen)}, messages.ERROR)
            return None
        if "apply" in request.POST:
            self._do(request, order, chosen)
            return None
        hidden = [("action", order.action), *((ACTION_CHECKBOX_NAME, wanted) for wanted in chosen)]
        names = [_name(wanted) for wanted in chosen[:NAMES_SHOWN]]
        return self._ask(request, order, names, len(chosen), hidden, request.get_full_path())

    def orders_of(self, request: HttpRequest, seen: SeenJob) -> list[dict[str, Any]]:
        return [
            {"label": order.label, "url": self.address(order.name, seen.result_id)}
            for order in ORDERS.values()
            if order.fits(seen) and self._may(request, order)
        ]

    def away(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Return a page that says that Redis could not be asked."""
        reason = str(error) if self.has_change_permission(request) else ""
        return self.page(request, "redisjob/away.html", _("Job"), status=503, error=failure(error), reason=reason)

    def _ask(
        self,
        request: HttpRequest,
        order: Order,
        names: list[str],
        count: int,
        hidden: list[tuple[str, str]],
        back: str,
        *,
        counted: str = "",
    ) -> HttpResponse:
        return self.page(
            request, "confirm.html", order.label, note=order.note, names=names, more=count - len(names),
            counted=counted or ngettext("%(counter)s job:", "%(counter)s jobs:", count) % {"counter": count},
            hidden=hidden, back=back, grave=order.name == "delete",
        )  # fmt: skip

    def _do(self, request: HttpRequest, order: Order, chosen: list[str]) -> None:
        titles = {wanted: _name(wanted) for wanted in chosen}  # afterwards some are gone
        given = {"by": request.user.get_username()} if order.name == "stop" else {}
        outcomes = {wanted: found for wanted in chosen if (found := order.by_row(wanted)) is not None}
        left = [wanted for wanted in chosen if wanted not in outcomes]

        def each(broker: Broker) -> None:
            for wanted in left:
                outcomes[wanted] = order.do(broker, wanted, **given)

        error: Exception | None = None
        try:
            if left:
                ask(each)
        except (BrokerError, ForeignLayout) as failed:
            error = failed
        done = [RedisJob(id=wanted) for wanted, found in outcomes.items() if found == Outcome.DONE]
        for job in done:
            job.title = titles[job.id]
        if order.name == "delete":
            self.log_deletions(request, done)  # type: ignore[arg-type]
        else:
            for job in done:
                self.log_change(request, job, str(order.logged))
        for outcome, count in sorted(Counter(outcomes.values()).items()):
            text, level = LEFT.get(outcome, order.done), messages.WARNING if outcome in LEFT else messages.SUCCESS
            self.message_user(request, text % {"count": count}, level)
        if error is not None:
            text = ngettext(
                "It is not known what became of %(count)d job: look at it before you try again.",
                "It is not known what became of %(count)d jobs: look at them before you try again.",
                len(chosen) - len(outcomes),
            ) % {"count": len(chosen) - len(outcomes)}
            reason = f" {plain(str(error))}" if self.has_change_permission(request) else ""
            self.message_user(request, f"{failure(error)} {text}{reason}", messages.ERROR)

    def _may(self, request: HttpRequest, order: Order) -> bool:
        allowed: bool = getattr(self, f"has_{order.permission}_permission")(request)
        return allowed


def _name(wanted: str) -> str:
    """Return what a job is called, its id where nobody tells more."""
    with suppress(BrokerError, ForeignLayout):  # what follows says so
        if (row := find(wanted)) is not None:
            return str(row)
    return plain(wanted[:100])
