"""Jobs in the admin, read from Redis, dead ones also from the database.

Listed by state, to be looked at, cancelled, run now, retried and deleted.
"""

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.options import IS_POPUP_VAR
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf, mirror
from ..backend.listing import JobState, SeenJob, find_job, find_stored
from ..exceptions import BrokerError, ForeignLayout
from ..jobs import parse_id
from ..models import RedisJob
from ..plain import plain
from . import job_display as shown
from .asked import StorableQuestions
from .job_actions import JobActions
from .job_list import JobChangeList, QueueFilter, as_row, state_of

if TYPE_CHECKING:
    Base = admin.ModelAdmin[RedisJob]
else:
    Base = admin.ModelAdmin

COLUMNS = {
    JobState.WAITING: ("task", "waits_until", "queue", "priority", "attempts"),
    JobState.READY: ("task", "ready_since", "queue", "priority", "attempts"),
    JobState.RUNNING: ("task", "running_since", "worker", "queue", "attempts"),
    JobState.DEAD: ("task", "error", "died", "attempts"),
}


@admin.register(RedisJob)
class RedisJobAdmin(StorableQuestions, JobActions, Base):
    """Look at jobs and change them. Nothing here touches a table of its own: there is none."""

    list_display = ("task",)
    list_display_links = None
    list_filter = (QueueFilter,)
    list_per_page = 50
    sortable_by = ()
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    readonly_fields = (
        "state", "task_path", "queue", "priority", "job_id", "args", "kwargs", "errors", "result", "enqueued",
        "run_after", "about_state", "lease", "started", "attempted", "finished", "backend", "attempts", "workers",
        "options", "size", "history",
    )  # fmt: skip

    class Media:
        css = {"all": ("django_delayq/admin.css",)}

    def get_urls(self) -> list[URLPattern]:
        """Return the pages: nothing is added here, and there is no table whose history could be told."""
        view, name = self.admin_site.admin_view, f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            *self.order_urls(),
            path("<path:object_id>/change/", view(self.change_view), name=f"{name}_change"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Jobs are enqueued by code."""
        return False

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        """Return the page that asks Redis."""
        return JobChangeList

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the columns that say something in this state."""
        return COLUMNS[state_of(request)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, or go to the job whose id was typed."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        if request.GET.get("id") and request.method == "GET" and IS_POPUP_VAR not in request.GET:
            wanted = request.GET["id"].strip()
            if parse_id(wanted) is not None:
                return HttpResponseRedirect(self.url_of(wanted))
            text = _("That is no id of a job: one looks like “default.” and 22 characters.")
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(request.path)
        return super().changelist_view(request, extra_context)

    @admin.display(description=gettext_lazy("task"))
    def task(self, row: RedisJob) -> SafeString:
        """Return task and id, linked to the job's page."""
        seen = seen_of(row)
        return shown.task_name(seen, self.url_of(seen.result_id) if seen.result_id else "")

    @admin.display(description=gettext_lazy("waits until"))
    def waits_until(self, row: RedisJob) -> SafeString | str:
        """Return the time that it waits for."""
        return shown.when(seen_of(row))

    @admin.display(description=gettext_lazy("ready since"))
    def ready_since(self, row: RedisJob) -> SafeString | str:
        """Return since when it waits for its turn."""
        return shown.when(seen_of(row))

    @admin.display(description=gettext_lazy("running since"))
    def running_since(self, row: RedisJob) -> SafeString | str:
        """Return since when a worker has it."""
        return shown.when(seen_of(row))

    @admin.display(description=gettext_lazy("died"))
    def died(self, row: RedisJob) -> SafeString | str:
        """Return when it died."""
        return shown.when(seen_of(row))

    @admin.display(description=gettext_lazy("worker"))
    def worker(self, row: RedisJob) -> str:
        """Return who has it."""
        return plain(seen_of(row).worker)

    @admin.display(description=gettext_lazy("error"))
    def error(self, row: RedisJob) -> SafeString:
        """Return the last line of the last error."""
        return format_html('<span class="delayq-error">{}</span>', shown.last_line(seen_of(row)))

    # One job

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> RedisJob | None:
        """Read a job from the database where its row tells all, else from Redis.

        Raises:
            BrokerError, ForeignLayout: Redis cannot be asked.
        """
        seen = find_stored(object_id)
        if seen is None and conf.get_config().mirror:
            seen = mirror.ask(lambda broker: find_job(broker, object_id))
        return None if seen is None else as_row(seen)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a job. There is no form: what can be done to it has pages of its own."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET"])
        try:
            return super().change_view(request, object_id, form_url, {**(extra_context or {}), "title": _("Job")})
        except (BrokerError, ForeignLayout) as error:
            return self.away(request, error)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons."""
        context["orders"] = self.orders_of(request, seen_of(context["original"]))
        return super().render_change_form(request, context, *args, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return what there is to tell of a job: of one that cannot be read only what Redis tells beside its text."""
        seen = None if obj is None else seen_of(obj)
        if seen is None or seen.call is None or seen.record is None:
            held = ("lease", "workers") if seen is not None and seen.worker else ()
            return [
                (None, {"fields": ("state", "queue", "job_id", "size")}),
                (gettext_lazy("Time"), {"fields": ("about_state", *held)}),
            ]
        record = seen.record
        outcome = [
            name for name, there in (("errors", record.errors), ("result", record.status == "SUCCESSFUL")) if there
        ]
        times = [
            ("enqueued", "run_after") if seen.call.run_after is not None else "enqueued",
            ("about_state", "lease") if seen.worker else "about_state",
            *([("started", "attempted")] if record.started is not None else []),
            *(["finished"] if record.finished is not None else []),
        ]
        return [
            (None, {"fields": ("state", "task_path", ("queue", "priority"), "job_id")}),
            *([(gettext_lazy("Outcome"), {"fields": outcome})] if outcome else []),
            *([(gettext_lazy("Attempts"), {"fields": ("history",)})] if len(shown.history(seen)) > 1 else []),
            (gettext_lazy("Arguments"), {"fields": ("args", "kwargs")}),
            (gettext_lazy("Time"), {"fields": times}),
            (gettext_lazy("Execution"), {"fields": (("attempts", "options"), "workers", ("backend", "size"))}),
        ]

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: RedisJob) -> SafeString:
        """Return the state, and what is wrong with its text."""
        return format_html("{} {}", shown.state_badge(seen_of(row)), shown.flaw_badge(seen_of(row)))

    @admin.display(description=gettext_lazy("task"))
    def task_path(self, row: RedisJob) -> str:
        """Return the task's path."""
        return plain(_call(row).task)

    @admin.display(description=gettext_lazy("queue"))
    def queue(self, row: RedisJob) -> str:
        """Return the queue."""
        return seen_of(row).shard.queue

    @admin.display(description=gettext_lazy("priority"))
    def priority(self, row: RedisJob) -> str:
        """Return the priority."""
        call = seen_of(row).call
        return "–" if call is None else str(call.priority)

    @admin.display(description=gettext_lazy("id"))
    def job_id(self, row: RedisJob) -> SafeString:
        """Return the id of its result."""
        return format_html('<code class="delayq-signature">{}</code>', row.id)

    @admin.display(description=gettext_lazy("positional arguments"))
    def args(self, row: RedisJob) -> SafeString | str:
        """Return the positional arguments as they may be shown."""
        return shown.arguments(seen_of(row))[0]

    @admin.display(description=gettext_lazy("keyword arguments"))
    def kwargs(self, row: RedisJob) -> SafeString | str:
        """Return the keyword arguments as they may be shown."""
        return shown.arguments(seen_of(row))[1]

    @admin.display(description=gettext_lazy("errors"))
    def errors(self, row: RedisJob) -> SafeString | str:
        """Return the errors with their tracebacks."""
        return shown.errors(seen_of(row))

    @admin.display(description=gettext_lazy("result"))
    def result(self, row: RedisJob) -> SafeString | str:
        """Return what the task returned."""
        return shown.result(seen_of(row))

    @admin.display(description=gettext_lazy("enqueued"))
    def enqueued(self, row: RedisJob) -> SafeString | str:
        """Return when it was enqueued."""
        return shown.shown_instant(_call(row).enqueued)

    @admin.display(description=gettext_lazy("not before"))
    def run_after(self, row: RedisJob) -> SafeString | str:
        """Return from when on it may start, as it was enqueued."""
        return shown.shown_instant(_call(row).run_after)

    @admin.display(description=gettext_lazy("in this state"))
    def about_state(self, row: RedisJob) -> SafeString | str:
        """Return the instant that its state is about."""
        seen = seen_of(row)
        words = {
            JobState.WAITING: _("waits until {}"),
            JobState.READY: _("ready since {}"),
            JobState.RUNNING: _("with a worker since {}"),
            JobState.DEAD: _("died {}"),
            JobState.ENDED: _("ended {}"),
        }[seen.state]
        return "–" if seen.at_ms is None else format_html(words, shown.shown_instant(seen.at_ms))

    @admin.display(description=gettext_lazy("lease ends"))
    def lease(self, row: RedisJob) -> SafeString | str:
        """Return until when its worker has it, unless it prolongs that."""
        return shown.shown_instant(seen_of(row).lease_until_ms)

    @admin.display(description=gettext_lazy("first attempt"))
    def started(self, row: RedisJob) -> SafeString | str:
        """Return when the first attempt that is recorded began."""
        record = seen_of(row).record
        return shown.shown_instant(None if record is None else record.started)

    @admin.display(description=gettext_lazy("last attempt"))
    def attempted(self, row: RedisJob) -> SafeString | str:
        """Return when the last attempt that is recorded began."""
        record = seen_of(row).record
        return shown.shown_instant(None if record is None else record.attempted)

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, row: RedisJob) -> SafeString | str:
        """Return when it ended."""
        record = seen_of(row).record
        return shown.shown_instant(None if record is None else record.finished)

    @admin.display(description=gettext_lazy("backend"))
    def backend(self, row: RedisJob) -> str:
        """Return the alias of its backend."""
        return plain(_call(row).backend)

    @admin.display(description=gettext_lazy("attempts"))
    def attempts(self, row: RedisJob) -> str:
        """Return how many attempts were made."""
        return shown.attempts(seen_of(row))

    @admin.display(description=gettext_lazy("all attempts"))
    def history(self, row: RedisJob) -> SafeString | str:
        """Return all attempts, also those of before it was retried by somebody."""
        return shown.attempts_table(seen_of(row))

    @admin.display(description=gettext_lazy("options of its own"))
    def options(self, row: RedisJob) -> str:
        """Return what the call says of retries, where its task and its backend do not."""
        call = _call(row)
        said = {"max_attempts": call.max_attempts, "backoff": call.backoff, "timeout": call.timeout}
        unique = [_("unique key")] if call.unique else []
        return ", ".join([*(f"{name} {value:g}" for name, value in said.items() if value is not None), *unique]) or "–"

    @admin.display(description=gettext_lazy("workers"))
    def workers(self, row: RedisJob) -> SafeString | str:
        """Return who tried it."""
        return shown.workers(seen_of(row))

    @admin.display(description=gettext_lazy("size"))
    def size(self, row: RedisJob) -> str:
        """Return the length of its text, and whether that stands in the database."""
        text = _("%(count)s characters in the database") if seen_of(row).in_database else _("%(count)s characters")
        return text % {"count": f"{seen_of(row).size:,}"}


def seen_of(row: Any) -> SeenJob:
    """Return what was seen of a row's job."""
    seen: SeenJob = row.seen
    return seen


def _call(row: Any) -> Any:
    return seen_of(row).call
