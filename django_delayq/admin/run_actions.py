"""Actions on runs, each a POST after a confirmation. The logic is in `backend.store`, the ledger and the models."""

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from .. import ledger
from ..backend import store
from ..calls import Options
from ..calls.call import get_backend
from ..exceptions import BrokerError, JobHeld, KeyTaken, UnknownTask
from ..models import Origin, Run, Status
from ..models.kept import MOST_AT_ONCE
from ..recurrence.point import utcnow
from ..sync.layout import ForeignLayout
from ..text import escape_text
from .base import is_long
from .confirming import Action, ConfirmingAdmin, list_actions

WAITING, FAILED = (Status.QUEUED, Status.RETRYING), (Status.FAILED, Status.LOST)


def cancel(job: Run, _by: str) -> bool:
    try:
        options: Options = get_backend(job.backend).settings
    except UnknownTask:
        options = Options()
    return store.cancel(job, options.result_ttl)


ACTIONS = {
    "run_now": Action(
        permission="change_run", statuses=(Status.QUEUED,), do=lambda run, by: store.move(run, utcnow()),
        label=gettext_lazy("Run now"), label_in_list=gettext_lazy("Run selected jobs now…"),
        note=gettext_lazy("The job waits for a free worker instead of its time. Nothing else changes."),
        logged=gettext_lazy("Run now."), done=ngettext_lazy(
            "%(count)d job waits for a worker now.", "%(count)d jobs wait for a worker now.", "count"
        ),
    ),
    "cancel": Action(
        permission="change_run", statuses=WAITING, do=cancel,
        label=gettext_lazy("Cancel job"), label_in_list=gettext_lazy("Cancel selected jobs…"),
        note=gettext_lazy("A cancelled job never runs. Its result is failed, with the error JobCancelled."),
        logged=gettext_lazy("Cancelled."),
        done=ngettext_lazy("%(count)d job is cancelled.", "%(count)d jobs are cancelled.", "count"),
    ),
    "stop": Action(
        permission="stop_run", statuses=(Status.RUNNING,), do=Run.cancel, is_grave=True,
        label=gettext_lazy("Stop"), label_in_list=gettext_lazy("Stop selected runs…"),
        note=gettext_lazy(
            "The task gets TaskCancelled within two seconds. The run is recorded as failed and not "
            "retried. Code that waits outside Python is not interrupted: after the grace the run is "
            "recorded anyway, and its process is replaced."
        ),
        logged=gettext_lazy("Stop requested."),
        done=ngettext_lazy("%(count)d run is being stopped.", "%(count)d runs are being stopped.", "count"),
    ),
    "retry": Action(
        permission="change_run", statuses=FAILED, do=lambda run, by: store.retry(run),
        label=gettext_lazy("Retry"), label_in_list=gettext_lazy("Retry selected jobs…"),
        note=gettext_lazy(
            "A retried job runs as it was enqueued, with all its attempts. Its errors stay on its "
            "page."
        ),
        logged=gettext_lazy("Retried."),
        done=ngettext_lazy("%(count)d job is queued again.", "%(count)d jobs are queued again.", "count"),
    ),
    "delete": Action(
        permission="delete_run", statuses=FAILED, do=lambda run, by: ledger.delete_job(run), is_grave=True,
        label=gettext_lazy("Delete"), label_in_list=gettext_lazy("Delete selected jobs…"),
        note=gettext_lazy("The job is deleted, with its arguments and errors. You cannot undo this."),
        logged="", done=ngettext_lazy("%(count)d job is deleted.", "%(count)d jobs are deleted.", "count"),
    ),
}  # fmt: skip


def can_apply(name: str, run: Run) -> bool:
    """Return whether an action applies to a run now. All runs can be stopped; the others apply to jobs."""
    if name == "run_now" and run.due_at <= utcnow():
        return False
    return run.status in ACTIONS[name].statuses and (name == "stop" or run.origin == Origin.JOB)


class RunActions(ConfirmingAdmin):
    confirmed_actions: Mapping[str, Action] = ACTIONS
    actions: tuple[Callable[..., Any], ...] = list_actions(ACTIONS)

    def name_row(self, row: Run) -> str:
        return f"{row.task} {row.result_id}" if row.token else str(row)

    def list_buttons(self, request: HttpRequest, run: Run) -> list[dict[str, Any]]:
        return [
            {"label": action.label, "url": self.get_url(name, run.pk)}
            for name, action in ACTIONS.items()
            if can_apply(name, run) and self.can_act(request, name)
        ]

    def confirm(self, request: HttpRequest, rows: QuerySet[Any], name: str, *, confirmed: bool) -> HttpResponse | None:
        """Ask about at most MOST_AT_ONCE runs, or act on them."""
        if not is_long(rows, MOST_AT_ONCE):
            return super().confirm(request, rows, name, confirmed=confirmed)
        text = _("At most %(most)d runs can be changed at once, and there are more. Nothing was changed.")
        self.message_user(request, text % {"most": MOST_AT_ONCE}, messages.ERROR)
        return None

    def act(self, request: HttpRequest, rows: QuerySet[Any], name: str, **values: Any) -> None:
        """Act on these runs, log it, and report how many were changed, and how many not and why."""
        action, by, runs = ACTIONS[name], request.user.get_username(), list(rows.defer(None).order_by("-pk"))
        done, held, unfit = list[Run](), 0, 0
        for position, run in enumerate(runs):
            try:
                if can_apply(name, run) and action.do(run, by):
                    done.append(run)
                else:
                    unfit += 1
            except JobHeld:
                held += 1
            except KeyTaken as taken:
                self.message_user(request, escape_text(str(taken)), messages.WARNING)
            except (BrokerError, ForeignLayout) as error:
                text = ngettext(
                    "Redis does not answer, so %(count)d job does not change.",
                    "Redis does not answer, so %(count)d jobs do not change.",
                    len(runs) - position,
                ) % {"count": len(runs) - position}
                self.message_user(request, f"{text} {escape_text(str(error))}", messages.ERROR)
                break
        if name == "delete":
            self.log_deletions(request, done)  # type: ignore[arg-type]
        else:
            for run in done:
                self.log_change(request, run, str(action.logged))
        if done:
            self.message_user(request, action.done % {"count": len(done)}, messages.SUCCESS)
        if held:
            text = ngettext(
                "%(count)d job does not change: a worker has it.",
                "%(count)d jobs do not change: workers have them.",
                held,
            )
            self.message_user(request, text % {"count": held}, messages.WARNING)
        if unfit:
            text = ngettext(
                "%(count)d run does not change: its state does not permit this.",
                "%(count)d runs do not change: their states do not permit this.",
                unfit,
            )
            self.message_user(request, text % {"count": unfit}, messages.WARNING)
