"""Dead jobs in groups of a task and an error: retried or deleted together, the newest `MOST_SELECTED` at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from .. import conf, failures
from ..backend import listing
from ..backend.listing import JobState, Listing, SeenJob
from ..broker import Broker
from ..broker.web import ask
from ..exceptions import BrokerError, ForeignLayout
from ..failures import JobGroup
from ..plain import plain
from . import display
from . import job_display as shown
from .job_actions import MOST_SELECTED, NAMES_SHOWN, JobActions
from .job_list import as_row, failure
from .job_orders import ORDERS, Order

#: So many dead jobs are read.
MOST_READ = 500
#: What is done to all of a group, and what the button is called.
LABELS = {"retry": gettext_lazy("Retry all"), "delete": gettext_lazy("Delete all")}


class DeadJobs(NamedTuple):
    """The newest dead jobs in groups. `read` is how many they are, `cut` says that there are more.

    `error` says that only those of the database were read, `reason` why, to whoever may know that.
    """

    groups: list[JobGroup]
    read: int
    cut: bool
    error: str = ""
    reason: str = ""


def read_dead() -> DeadJobs:
    """Read the newest dead jobs, as a web request may; those of the database also without Redis."""
    config, error, reason = conf.get_config(), "", ""

    def read(broker: Broker) -> Listing:
        shards = listing.shards_of(broker, config.queues)
        return listing.list_ended(JobState.DEAD, config.queues, size=MOST_READ, broker=broker, shards=shards)

    try:
        found = ask(read) if config.mirror else None
    except (BrokerError, ForeignLayout) as failed:
        found, error, reason = None, failure(failed), str(failed)
    if found is None:
        found = listing.list_ended(JobState.DEAD, config.queues, size=MOST_READ)
    return DeadJobs(failures.group_dead(found.jobs), len(found.jobs), bool(found.after), error, reason)


class JobFailures(JobActions):
    """The pages that ask before something is done to a group, and its row on the page of failures."""

    def group_urls(self) -> list[URLPattern]:
        take = require_http_methods(["GET", "HEAD", "POST"])
        return [
            self.route(
                f"failures/<str:digest>/{name}/", take(partial(self.group_view, order=ORDERS[name])), f"group-{name}"
            )
            for name in LABELS
        ]

    def group_rows(self, request: HttpRequest, groups: Sequence[JobGroup]) -> list[dict[str, Any]]:
        """Return what a template shows of these groups, and what this person may do to them."""
        return [
            {
                "task": display.breakable(plain(group.task)),
                "text": shown.error_words(group.jobs[0], group.text),
                "count": len(group.jobs),
                "last": shown.when(group.jobs[0]),
                "job": self.address("change", group.jobs[0].result_id) if group.jobs[0].result_id else "",
                "orders": [
                    {"label": label, "url": self.address(f"group-{name}", group.digest)}
                    for name, label in LABELS.items()
                    if self._may(request, ORDERS[name]) and _fitting(ORDERS[name], group)
                ],
            }
            for group in groups
        ]

    def group_view(self, request: HttpRequest, digest: str, order: Order) -> HttpResponse:
        """Ask (GET), or do it to the jobs that were asked about (POST)."""
        if not self._may(request, order):
            raise PermissionDenied
        sees_failures = request.user.has_perm("django_delayq.view_run")
        back = self.address("failures", model="run") if sees_failures else f"{self.address('changelist')}?state=dead"
        if request.method == "POST":
            chosen = list(dict.fromkeys(request.POST.getlist(ACTION_CHECKBOX_NAME)))
            self._do(request, order, chosen[:MOST_SELECTED])
            return HttpResponseRedirect(back)
        group = next((group for group in read_dead().groups if group.digest == digest), None)
        jobs = [] if group is None else _fitting(order, group)
        if not jobs:
            self.message_user(request, _("There are no such dead jobs any more."), messages.WARNING)
            return HttpResponseRedirect(back)
        chosen_jobs = jobs[:MOST_SELECTED]
        counted = _("The newest %(count)d of %(total)d jobs:") % {"count": MOST_SELECTED, "total": len(jobs)}
        return self._ask(
            request, order, [str(as_row(seen)) for seen in chosen_jobs[:NAMES_SHOWN]], len(chosen_jobs),
            [(ACTION_CHECKBOX_NAME, str(seen.result_id)) for seen in chosen_jobs], back,
            counted=counted if len(jobs) > MOST_SELECTED else "",
        )  # fmt: skip


def _fitting(order: Order, group: JobGroup) -> list[SeenJob]:
    return [seen for seen in group.jobs if order.fits(seen)]
