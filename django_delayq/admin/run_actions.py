"""Actions on runs, each a POST after a confirmation. The logic is in `backend.store`, the ledger and the models."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy
from django.views.decorators.http import require_http_methods

from .. import ledger
from ..backend import store
from ..calls import Options
from ..calls.call import backend_of
from ..calls.validators import read_key
from ..exceptions import BrokerError, JobHeld, KeyTaken, UnknownTask
from ..models import Origin, Run, Status
from ..models.kept import MOST_AT_ONCE
from ..recurrence.point import utcnow
from ..sync.layout import ForeignLayout
from ..text import plain
from .actions import NAMES_SHOWN
from .base import BaseAdmin

WAITING, FAILED = (Status.QUEUED, Status.RETRYING), (Status.FAILED, Status.LOST)


@dataclass(frozen=True, slots=True)
class Order:
    """An action on runs with one of these statuses, for users with the permission. `do` takes the username too."""

    name: str
    permission: str
    statuses: tuple[Status, ...]
    do: Callable[[Run, str], bool]
    #: Labels of the button and of the list's action.
    label: Any
    label_of_action: Any
    note: Any
    #: Messages for the log, and for the user about `count` runs.
    logged: Any
    done: Any

    @property
    def action(self) -> str:
        """The name of the list's action; `delete_selected` replaces Django's action."""
        return "delete_selected" if self.name == "delete" else self.name.replace("-", "_")

    def fits(self, run: Run) -> bool:
        """Return whether the action applies to this run now. All runs can be stopped; the others apply to jobs."""
        if self.name == "run-now" and run.due_at <= utcnow():
            return False
        return run.status in self.statuses and (self.name == "stop" or run.origin == Origin.JOB)


def _cancel(job: Run) -> bool:
    try:
        options: Options = backend_of(job.backend).settings
    except UnknownTask:
        options = Options()
    return store.cancel(job, options.result_ttl)


ORDERS = {
    order.name: order
    for order in (
        Order(
            name="run-now", permission="change_run", statuses=(Status.QUEUED,),
            do=lambda run, by: store.move(run, utcnow()),
            label=gettext_lazy("Run now"), label_of_action=gettext_lazy("Run selected jobs now…"),
            note=gettext_lazy("A job that is run now waits for its turn instead of its time. Nothing else changes."),
            logged=gettext_lazy("Run now."), done=ngettext_lazy(
                "%(count)d job waits for its turn now.", "%(count)d jobs wait for their turn now.", "count"
            ),
        ),
        Order(
            name="cancel", permission="change_run", statuses=WAITING, do=lambda run, by: _cancel(run),
            label=gettext_lazy("Cancel job"), label_of_action=gettext_lazy("Cancel selected jobs…"),
            note=gettext_lazy("A cancelled job is never executed. Its result is failed, with the error JobCancelled."),
            logged=gettext_lazy("Cancelled."),
            done=ngettext_lazy("%(count)d job is cancelled.", "%(count)d jobs are cancelled.", "count"),
        ),
        Order(
            name="stop", permission="stop_run", statuses=(Status.RUNNING,), do=Run.cancel,
            label=gettext_lazy("Stop"), label_of_action=gettext_lazy("Stop selected runs…"),
            note=gettext_lazy(
                "TaskCancelled is raised in the task within two seconds. It is recorded as failed and not tried again. "
                "Code that waits outside of Python is not interrupted: after the grace it is recorded without it, and "
                "its process replaced."
            ),
            logged=gettext_lazy("Stop asked for."),
            done=ngettext_lazy("%(count)d run is being stopped.", "%(count)d runs are being stopped.", "count"),
        ),
        Order(
            name="retry", permission="change_run", statuses=FAILED, do=lambda run, by: store.retry(run),
            label=gettext_lazy("Retry"), label_of_action=gettext_lazy("Retry selected jobs…"),
            note=gettext_lazy(
                "A retried job is executed as it was enqueued, with all its attempts. Its errors stay on its page."
            ),
            logged=gettext_lazy("Retried."),
            done=ngettext_lazy("%(count)d job is tried again.", "%(count)d jobs are tried again.", "count"),
        ),
        Order(
            name="delete", permission="delete_run", statuses=FAILED, do=lambda run, by: ledger.delete_job(run),
            label=gettext_lazy("Delete"), label_of_action=gettext_lazy("Delete selected jobs…"),
            note=gettext_lazy("A deleted job is gone, with its arguments and its errors. Nothing brings it back."),
            logged=gettext_lazy("Deleted."),
            done=ngettext_lazy("%(count)d job is deleted.", "%(count)d jobs are deleted.", "count"),
        ),
    )
}  # fmt: skip

#: Reasons why an action was not performed.
HELD, GONE, UNFIT = "held", "gone", "unfit"
LEFT = {
    HELD: ngettext_lazy(
        "%(count)d job stays as it is: a worker has it, so it runs or is about to.",
        "%(count)d jobs stay as they are: workers have them, so they run or are about to.",
        "count",
    ),
    GONE: ngettext_lazy(
        "%(count)d run is not there any more: it has expired, or somebody deleted it.",
        "%(count)d runs are not there any more: they have expired, or somebody deleted them.",
        "count",
    ),
    UNFIT: ngettext_lazy(
        "%(count)d run stays as it is: as it stands now, this cannot be done to it.",
        "%(count)d runs stay as they are: as they stand now, this cannot be done to them.",
        "count",
    ),
}


def _action(order: Order) -> Callable[..., HttpResponse | None]:

    @admin.action(description=order.label_of_action)
    def act(model_admin: "RunActions", request: HttpRequest, runs: QuerySet[Run]) -> HttpResponse | None:
        return model_admin.order_several(request, runs, order)

    act.__name__ = order.action
    return act


class RunActions(BaseAdmin):
    """The list's actions, also available as buttons on a run's page."""

    actions = tuple(map(_action, ORDERS.values()))

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions that the user may perform. Django passes the location since 6.1."""
        given = {} if action_location is None else {"action_location": action_location}
        refused = {order.action for order in ORDERS.values() if not self.may(request, order)}
        found = super().get_actions(request, **given)
        return {name: action for name, action in found.items() if name not in refused}

    def may(self, request: HttpRequest, order: Order) -> bool:
        """Return whether the user may view runs and has the action's permission."""
        return self.has_view_permission(request) and request.user.has_perm(f"django_delayq.{order.permission}")

    def order_urls(self) -> list[URLPattern]:
        take = require_http_methods(["GET", "HEAD", "POST"])
        return [
            self.route(f"<int:pk>/{name}/", take(partial(self.order_view, order=order)), name)
            for name, order in ORDERS.items()
        ]

    def orders_of(self, request: HttpRequest, run: Run) -> list[dict[str, Any]]:
        """Return the buttons of a run's page."""
        return [
            {"label": order.label, "url": self.address(order.name, run.pk)}
            for order in ORDERS.values()
            if order.fits(run) and self.may(request, order)
        ]

    def order_view(self, request: HttpRequest, pk: int, order: Order) -> HttpResponse:
        """Ask (GET), or act on one run (POST); if the action does not apply, warn the user."""
        if not self.may(request, order):
            raise PermissionDenied
        run = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if run is None:
            raise Http404(_("There is no such run; it may have been pruned."))
        back = self.address("change", pk)
        if request.method == "POST":
            self.do_order(request, order, [pk])
            is_there = self.get_queryset(request).filter(pk=pk).exists()
            return HttpResponseRedirect(back if is_there else self.address("changelist"))
        if order.fits(run):
            return self.ask_order(request, order, [run], back)
        self.message_user(request, LEFT[UNFIT] % {"count": 1}, messages.WARNING)
        return HttpResponseRedirect(back)

    def order_several(self, request: HttpRequest, runs: QuerySet[Run], order: Order) -> HttpResponse | None:
        """Ask, or act on the chosen runs once confirmed."""
        chosen = list(runs.order_by("-pk")[: MOST_AT_ONCE + 1])
        if len(chosen) > MOST_AT_ONCE:
            text = _("At most %(most)d runs are changed at once, and these are more. Nothing was done.")
            self.message_user(request, text % {"most": MOST_AT_ONCE}, messages.ERROR)
        elif "apply" not in request.POST:
            return self.ask_order(request, order, chosen, request.get_full_path(), [("action", order.action)])
        else:
            self.do_order(request, order, posted(request, MOST_AT_ONCE))
        return None

    def ask_order(
        self,
        request: HttpRequest,
        order: Order,
        runs: Sequence[Run],
        back: str,
        hidden: Sequence[tuple[str, str]] = (),
        *,
        counted: str = "",
    ) -> HttpResponse:
        """Return the confirmation page for these runs."""
        count = ngettext("%(counter)s run:", "%(counter)s runs:", len(runs)) % {"counter": len(runs)}
        return self.page(
            request, "confirm.html", order.label, note=order.note, names=[_name(run) for run in runs[:NAMES_SHOWN]],
            more=len(runs) - NAMES_SHOWN, counted=counted or count, back=back, grave=order.name in ("stop", "delete"),
            hidden=[*hidden, *((ACTION_CHECKBOX_NAME, run.pk) for run in runs)],
        )  # fmt: skip

    def do_order(self, request: HttpRequest, order: Order, pks: Sequence[int]) -> None:
        """Act on these runs, log it, and report how many were changed, and how many not and why."""
        runs, by = self.get_queryset(request).defer(None).in_bulk(pks), request.user.get_username()
        done, left = list[Run](), Counter[str]()
        for asked, pk in enumerate(pks):
            try:
                if (run := runs.get(pk)) is None:
                    left[GONE] += 1
                elif order.fits(run) and order.do(run, by):
                    done.append(run)
                else:
                    left[UNFIT] += 1
            except JobHeld:
                left[HELD] += 1
            except KeyTaken as taken:
                self.message_user(request, plain(str(taken)), messages.WARNING)
            except (BrokerError, ForeignLayout) as error:
                self._tell_away(request, error, len(pks) - asked)
                break
        if order.name == "delete":
            self.log_deletions(request, done)  # type: ignore[arg-type]
        else:
            for run in done:
                self.log_change(request, run, str(order.logged))
        if done:
            self.message_user(request, order.done % {"count": len(done)}, messages.SUCCESS)
        for why, count in left.items():
            self.message_user(request, LEFT[why] % {"count": count}, messages.WARNING)

    def _tell_away(self, request: HttpRequest, error: Exception, count: int) -> None:
        text = ngettext(
            "Redis cannot be asked, so %(count)d job stays as it is.",
            "Redis cannot be asked, so %(count)d jobs stay as they are.",
            count,
        ) % {"count": count}
        self.message_user(request, f"{text} {plain(str(error))}", messages.ERROR)


def posted(request: HttpRequest, most: int) -> list[int]:
    """Return the primary keys that a confirmation page has posted, at most `most`."""
    found = map(read_key, request.POST.getlist(ACTION_CHECKBOX_NAME))
    return list(dict.fromkeys(pk for pk in found if pk is not None))[:most]


def _name(run: Run) -> str:
    return plain(f"{run.task} {run.result_id}" if run.token else str(run))
