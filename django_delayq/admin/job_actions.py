"""Has people do to jobs what `job_orders` offers. Each is a POST with a permission, after a page that asks."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from ..backend.listing import SeenJob
from ..backend.operating import Outcome
from ..broker import Broker
from ..broker.web import ask
from ..exceptions import BrokerError, ForeignLayout
from ..models import RedisJob
from ..plain import plain
from .base import BaseAdmin
from .job_list import failure, find, state_of
from .job_orders import LEFT, ORDERS, Order

#: So many jobs are changed at once.
MOST_SELECTED = 100
#: So many of them are named on the page that asks.
NAMES_SHOWN = 20


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
        self._log(request, order, done)
        self._tell(request, order, outcomes, error, unknown=len(chosen) - len(outcomes))

    def _log(self, request: HttpRequest, order: Order, done: list[RedisJob]) -> None:
        if order.name == "delete":
            self.log_deletions(request, done)  # type: ignore[arg-type]
            return
        for job in done:
            self.log_change(request, job, str(order.logged))

    def _tell(
        self, request: HttpRequest, order: Order, outcomes: Mapping[str, Outcome], error: Exception | None, unknown: int
    ) -> None:
        """Tell what became of how many, and after an error of how many that is not known."""
        for outcome, count in sorted(Counter(outcomes.values()).items()):
            text, level = LEFT.get(outcome, order.done), messages.WARNING if outcome in LEFT else messages.SUCCESS
            self.message_user(request, text % {"count": count}, level)
        if error is not None:
            text = ngettext(
                "It is not known what became of %(count)d job: look at it before you try again.",
                "It is not known what became of %(count)d jobs: look at them before you try again.",
                unknown,
            ) % {"count": unknown}
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
