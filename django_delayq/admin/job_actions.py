"""What a person can do to jobs: cancel, run now, retry, delete. Each is a POST with a permission, after a page that
asks; what it means is for `backend.operating` to say.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import mirror
from ..backend import operating
from ..backend.listing import JobState, SeenJob, find_job, find_stored
from ..backend.operating import Outcome
from ..broker import Broker
from ..exceptions import BrokerError, ForeignLayout
from ..models import RedisJob
from ..plain import plain
from .job_list import as_row, failure, state_of

if TYPE_CHECKING:
    Base = admin.ModelAdmin[RedisJob]
else:
    Base = object

#: So many jobs are changed at once.
MOST_SELECTED = 100
#: So many of them are named on the page that asks.
NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Order:
    """Something that can be done to jobs in some states, by whoever has the permission."""

    name: str
    permission: str
    states: tuple[JobState, ...]
    do: Callable[[Broker, str], Outcome]
    label: Any
    note: Any
    #: What the log says.
    logged: Any
    #: Does it to a durable job in the database, also without Redis; None where that is not for the database to say.
    by_row: Callable[[str], Outcome | None] = lambda wanted: None

    @property
    def action(self) -> str:
        """The name of the list's action; Django has one of this name, which ours replaces."""
        return "delete_selected" if self.name == "delete" else self.name.replace("-", "_")

    def fits(self, seen: SeenJob) -> bool:
        """Say whether a job that was seen like this is one for it."""
        return seen.result_id is not None and seen.state in self.states and (self.name != "retry" or not seen.flaw)


WAITS = (JobState.WAITING, JobState.READY)
ORDERS = {
    order.name: order
    for order in (
        Order(
            "run-now", "change", (JobState.WAITING,), operating.run_now, gettext_lazy("Run now"),
            gettext_lazy("A job that is run now waits for its turn instead of its time. Nothing else changes."),
            gettext_lazy("Run now."),
        ),
        Order(
            "cancel", "change", WAITS, operating.cancel, gettext_lazy("Cancel job"),
            gettext_lazy("A cancelled job is never executed. Its result is failed, with the error JobCancelled."),
            gettext_lazy("Cancelled."),
        ),
        Order(
            "retry", "change", (JobState.DEAD,), operating.revive, gettext_lazy("Retry"),
            gettext_lazy("A retried job is executed as it was enqueued, with all attempts. Its errors are forgotten."),
            gettext_lazy("Retried."), operating.revive_row,
        ),
        Order(
            "delete", "delete", (JobState.DEAD,), operating.delete, gettext_lazy("Delete"),
            gettext_lazy("A deleted job is gone, with its arguments and its errors. Nothing brings it back."),
            gettext_lazy("Deleted."), operating.delete_row,
        ),
    )
}  # fmt: skip


class JobActions(Base):
    """The actions of the list, and the same as buttons of a job's page."""

    actions = ("run_now", "cancel", "retry", "delete_selected")

    @admin.action(permissions=["change"], description=gettext_lazy("Run selected jobs now…"))
    def run_now(self, request: HttpRequest, queryset: QuerySet[RedisJob]) -> HttpResponse | None:
        """Ask, then let each wait for its turn."""
        return self._several(request, ORDERS["run-now"])

    @admin.action(permissions=["change"], description=gettext_lazy("Cancel selected jobs…"))
    def cancel(self, request: HttpRequest, queryset: QuerySet[RedisJob]) -> HttpResponse | None:
        """Ask, then cancel each."""
        return self._several(request, ORDERS["cancel"])

    @admin.action(permissions=["change"], description=gettext_lazy("Retry selected jobs…"))
    def retry(self, request: HttpRequest, queryset: QuerySet[RedisJob]) -> HttpResponse | None:
        """Ask, then revive each."""
        return self._several(request, ORDERS["retry"])

    @admin.action(permissions=["delete"], description=gettext_lazy("Delete selected jobs…"))
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[RedisJob]) -> HttpResponse | None:
        """Ask, then delete each."""
        return self._several(request, ORDERS["delete"])

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return what can be done to jobs of the state that is listed. Django has told the location since 6.1."""
        given = {} if action_location is None else {"action_location": action_location}
        fitting = {order.action for order in ORDERS.values() if state_of(request) in order.states}
        found = super().get_actions(request, **given)
        return {name: action for name, action in found.items() if name in fitting}

    def order_urls(self) -> list[URLPattern]:
        """Return the addresses of the buttons."""
        return [
            path(
                f"<path:object_id>/{order.name}/",
                self.admin_site.admin_view(partial(self.order_view, order=order)),
                name=f"{self.opts.app_label}_{self.opts.model_name}_{order.name.replace('-', '_')}",
            )
            for order in ORDERS.values()
        ]

    def order_view(self, request: HttpRequest, object_id: str, order: Order) -> HttpResponse:
        """Ask (GET), or do it to one job (POST)."""
        if not self._may(request, order):
            raise PermissionDenied
        wanted = unquote(object_id)
        if request.method == "POST":
            self._do(request, order, [wanted])
            return HttpResponseRedirect(self._list_url(order.states[0]))
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "POST"])
        try:
            row = self.get_object(request, wanted)
        except (BrokerError, ForeignLayout) as error:
            return self.away(request, error)
        if row is None:
            self.message_user(request, _("There is no such job; it may have ended meanwhile."), messages.WARNING)
            return HttpResponseRedirect(self._list_url(order.states[0]))
        return self._ask_page(request, order, [str(row)], 1, [], self.url_of(wanted))

    def orders_of(self, request: HttpRequest, seen: SeenJob) -> list[dict[str, Any]]:
        """Return the buttons of a job's page."""
        return [
            {"label": order.label, "url": self.url_of(str(seen.result_id), order.name)}
            for order in ORDERS.values()
            if order.fits(seen) and self._may(request, order)
        ]

    def url_of(self, wanted: str, view: str = "change") -> str:
        """Return the address of a job's page."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{view.replace('-', '_')}"
        return reverse(name, args=[quote(wanted)], current_app=self.admin_site.name)

    def away(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Return a page that says that Redis could not be asked."""
        page = {
            **self.admin_site.each_context(request),
            "title": _("Job"),
            "opts": self.opts,
            "media": self.media,
            "error": failure(error),
            "reason": str(error) if self.has_change_permission(request) else "",
        }
        return TemplateResponse(request, "admin/django_delayq/redisjob/away.html", page, status=503)

    # -- inside

    def _several(self, request: HttpRequest, order: Order) -> HttpResponse | None:
        chosen = list(dict.fromkeys(request.POST.getlist(ACTION_CHECKBOX_NAME)))
        if len(chosen) > MOST_SELECTED:
            text = _("At most %(most)d jobs are changed at once, and these are %(count)d. Nothing was done.")
            self.message_user(request, text % {"most": MOST_SELECTED, "count": len(chosen)}, messages.ERROR)
            return None
        if "apply" in request.POST:
            self._do(request, order, chosen)
            return None
        hidden = [("action", order.action), *((ACTION_CHECKBOX_NAME, wanted) for wanted in chosen)]
        names = self._names(chosen[:NAMES_SHOWN])
        return self._ask_page(request, order, names, len(chosen), hidden, request.get_full_path())

    def _names(self, chosen: Iterable[str]) -> list[str]:
        """Return what these jobs are called, their ids where Redis does not tell more."""
        known = {wanted: plain(wanted[:100]) for wanted in chosen}

        def tell(wanted: str, seen: SeenJob | None) -> None:
            if seen is not None:
                known[wanted] = str(as_row(seen))

        def look(broker: Broker) -> None:
            for wanted in known:
                tell(wanted, find_job(broker, wanted))

        for wanted in known:
            tell(wanted, find_stored(wanted))
        with suppress(BrokerError, ForeignLayout):  # what follows says so
            mirror.ask(look)
        return list(known.values())

    def _ask_page(
        self, request: HttpRequest, order: Order, names: list[str], count: int, hidden: list[tuple[str, str]], back: str
    ) -> HttpResponse:
        page = {
            **self.admin_site.each_context(request),
            "title": order.label,
            "opts": self.opts,
            "media": self.media,
            "note": order.note,
            "names": names,
            "count": count,
            "more": count - len(names),
            "hidden": hidden,
            "back": back,
            "grave": order.name == "delete",
        }
        return TemplateResponse(request, "admin/django_delayq/redisjob/confirm.html", page)

    def _do(self, request: HttpRequest, order: Order, chosen: list[str]) -> None:
        outcomes = {wanted: told for wanted in chosen if (told := order.by_row(wanted)) is not None}
        left = [wanted for wanted in chosen if wanted not in outcomes]

        def each(broker: Broker) -> None:
            for wanted in left:
                outcomes[wanted] = order.do(broker, wanted)

        error: Exception | None = None
        try:
            if left:
                mirror.ask(each)
        except (BrokerError, ForeignLayout) as failed:
            error = failed
        self._log(request, order, [wanted for wanted, outcome in outcomes.items() if outcome == Outcome.DONE])
        for outcome, count in sorted(Counter(outcomes.values()).items()):
            level = messages.SUCCESS if outcome == Outcome.DONE else messages.WARNING
            self.message_user(request, _said(order, outcome, count), level)
        if error is not None:
            text = ngettext(
                "It is not known what became of %(count)d job: look at it before you try again.",
                "It is not known what became of %(count)d jobs: look at them before you try again.",
                len(chosen) - len(outcomes),
            ) % {"count": len(chosen) - len(outcomes)}
            reason = f" {plain(str(error))}" if self.has_change_permission(request) else ""
            self.message_user(request, f"{failure(error)} {text}{reason}", messages.ERROR)

    def _log(self, request: HttpRequest, order: Order, done: Iterable[str]) -> None:
        for wanted in done:
            if order.name == "delete":
                self.log_deletions(request, [RedisJob(id=wanted)])  # type: ignore[arg-type]
            else:
                self.log_change(request, RedisJob(id=wanted), str(order.logged))

    def _may(self, request: HttpRequest, order: Order) -> bool:
        allowed: bool = getattr(self, f"has_{order.permission}_permission")(request)
        return allowed

    def _list_url(self, state: JobState) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return f"{reverse(name, current_app=self.admin_site.name)}?state={state.value}"


def _said(order: Order, outcome: Outcome, count: int) -> str:
    return _sentence(order, outcome, count) % {"count": count}


def _sentence(order: Order, outcome: Outcome, count: int) -> str:
    if outcome == Outcome.DONE:
        return {
            "run-now": ngettext(
                "%(count)d job waits for its turn now.", "%(count)d jobs wait for their turn now.", count
            ),
            "cancel": ngettext("%(count)d job is cancelled.", "%(count)d jobs are cancelled.", count),
            "retry": ngettext("%(count)d job is tried again.", "%(count)d jobs are tried again.", count),
            "delete": ngettext("%(count)d job is deleted.", "%(count)d jobs are deleted.", count),
        }[order.name]
    return {
        Outcome.HELD: ngettext(
            "%(count)d job stays as it is: a worker holds it, so it runs or is about to.",
            "%(count)d jobs stay as they are: workers hold them, so they run or are about to.",
            count,
        ),
        Outcome.GONE: ngettext(
            "%(count)d job is not there any more: it has ended, or somebody deleted it.",
            "%(count)d jobs are not there any more: they have ended, or somebody deleted them.",
            count,
        ),
        Outcome.DEAD: ngettext(
            "%(count)d job stays as it is: it has died. Retry or delete it.",
            "%(count)d jobs stay as they are: they have died. Retry or delete them.",
            count,
        ),
        Outcome.NOT_DEAD: ngettext(
            "%(count)d job stays as it is: it is not dead, somebody may have retried it.",
            "%(count)d jobs stay as they are: they are not dead, somebody may have retried them.",
            count,
        ),
        Outcome.READY: ngettext(
            "%(count)d job is ready already: its turn comes without that.",
            "%(count)d jobs are ready already: their turns come without that.",
            count,
        ),
        Outcome.KEY_TAKEN: ngettext(
            "%(count)d job stays as it is: another job with its unique key waits already.",
            "%(count)d jobs stay as they are: other jobs with their unique keys wait already.",
            count,
        ),
        Outcome.UNREADABLE: ngettext(
            "%(count)d job cannot be retried: it is not signed with this project's key, or cannot be read.",
            "%(count)d jobs cannot be retried: they are not signed with this project's key, or cannot be read.",
            count,
        ),
    }[outcome]
