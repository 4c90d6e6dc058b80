"""Jobs in the admin, read from Redis, dead ones also from the database.

Listed by state, to be looked at, cancelled, run now, retried and deleted.
"""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.utils import flatten_fieldsets
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..backend.listing import JobState, SeenJob
from ..exceptions import BrokerError, ForeignLayout, UnreadableJob
from ..jobs import parse_id
from ..models import Output, RedisJob
from ..plain import plain
from . import display
from . import job_display as shown
from .base import Column, column
from .display import Html
from .filters import QueueFilter
from .job_failures import JobFailures
from .job_list import JobChangeList, find, state_of
from .origins import run_of


def about(label: Any, show: Callable[[SeenJob], Any]) -> Column:
    """Return a column that shows something of what was seen of a job, a dash where its text cannot be read."""

    def shown_of(row: Any) -> Any:
        try:
            return show(row.seen)
        except UnreadableJob:
            return "–"

    return column(label, shown_of)


COLUMNS = {
    JobState.WAITING: ("task", "waits_until", "queue", "priority", "attempts"),
    JobState.READY: ("task", "ready_since", "queue", "priority", "attempts"),
    JobState.RUNNING: ("task", "running_since", "worker", "queue", "attempts"),
    JobState.DEAD: ("task", "error", "died", "attempts"),
    JobState.ENDED: ("task", "succeeded", "took", "queue", "attempts"),
}


@admin.register(RedisJob)
class RedisJobAdmin(JobFailures):
    """Look at jobs and change them. Nothing here touches a table of its own: there is none."""

    list_display = ("task",)
    list_display_links = None
    list_filter = (QueueFilter,)
    list_per_page = 50
    sortable_by = ()
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False

    class Media:
        js = ("django_delayq/copy.js",)

    def get_urls(self) -> list[URLPattern]:
        """Return the pages: nothing is added here, and there is no table whose history could be told."""
        return [
            self.route("", self.changelist_view, "changelist"),
            *self.group_urls(),
            *self.order_urls(),
            self.route("<path:object_id>/change/", self.change_view, "change"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Jobs are enqueued by code."""
        return False

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        return JobChangeList

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        task, *rest = COLUMNS[state_of(request)]
        return "called" if self.may_see_arguments(request) else task, *rest

    def may_see_arguments(self, request: HttpRequest) -> bool:
        """Arguments have a permission of their own, which whoever may change jobs has too."""
        return self.has_change_permission(request) or request.user.has_perm("django_delayq.view_job_arguments")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, or go to the job whose id was typed."""
        if request.GET.get("id") and request.method == "GET" and IS_POPUP_VAR not in request.GET:
            wanted = request.GET["id"].strip()
            if parse_id(wanted) is not None:
                return HttpResponseRedirect(self.address("change", wanted))
            text = _("That is no id of a job: one looks like “default.” and 22 characters.")
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(request.path)
        return super().changelist_view(request, {**(extra_context or {}), "title": _("Jobs")})

    @admin.display(description=gettext_lazy("task"))
    def task(self, row: Any) -> SafeString:
        wanted = row.seen.result_id
        return shown.task_name(row.seen, self.address("change", wanted) if wanted else "")

    @admin.display(description=gettext_lazy("task and arguments"))
    def called(self, row: Any) -> SafeString:
        return format_html("{}{}", self.task(row), shown.short_arguments(row.seen))

    waits_until = column(gettext_lazy("waits until"), lambda row: shown.when(row.seen, row.waits))
    ready_since = column(gettext_lazy("ready since"), lambda row: shown.when(row.seen, row.waits))
    running_since = about(gettext_lazy("running since"), shown.when)
    died = about(gettext_lazy("died"), shown.when)
    succeeded = about(gettext_lazy("succeeded"), shown.when)
    took = about(gettext_lazy("duration"), shown.took)
    worker = about(gettext_lazy("worker"), lambda seen: plain(seen.worker))
    error = about(gettext_lazy("error"), shown.last_line)

    # One job

    state = about(gettext_lazy("state"), shown.state)
    task_path = about(gettext_lazy("task"), lambda seen: plain(seen.read()[0].task))
    queue = about(gettext_lazy("queue"), lambda seen: seen.shard.queue)
    priority = about(gettext_lazy("priority"), lambda seen: str(seen.read()[0].priority))
    job_id = column(gettext_lazy("id"), lambda row: display.identity(row.id))
    args = about(gettext_lazy("positional arguments"), lambda seen: shown.arguments(seen)[0])
    kwargs = about(gettext_lazy("keyword arguments"), lambda seen: shown.arguments(seen)[1])
    output = column(gettext_lazy("logged and printed"), lambda row: shown.output(row.seen, row.said))
    errors = about(gettext_lazy("errors"), shown.errors)
    result = about(gettext_lazy("result"), shown.result)
    enqueued = about(gettext_lazy("enqueued"), lambda seen: shown.instant_of(seen.read()[0].enqueued))
    run_after = about(gettext_lazy("not before"), lambda seen: shown.instant_of(seen.read()[0].run_after))
    about_state = about(gettext_lazy("in this state"), shown.about_state)
    lease = about(gettext_lazy("lease ends"), lambda seen: shown.instant_of(seen.lease_until_ms))
    started = about(gettext_lazy("first attempt"), lambda seen: shown.instant_of(seen.read()[1].started))
    attempted = about(gettext_lazy("last attempt"), lambda seen: shown.instant_of(seen.read()[1].attempted))
    finished = about(gettext_lazy("finished"), lambda seen: shown.instant_of(seen.read()[1].finished))
    backend = about(gettext_lazy("backend"), lambda seen: plain(seen.read()[0].backend))
    attempts = about(gettext_lazy("attempts"), shown.attempts)
    history = about(gettext_lazy("all attempts"), shown.all_attempts)
    options = about(gettext_lazy("options of its own"), shown.options)
    workers = about(gettext_lazy("workers"), shown.workers)
    size = about(gettext_lazy("size"), shown.size)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> RedisJob | None:
        """Return a job with what its page tells beside; raises what `find` does."""
        row: Any = find(object_id)
        if row is not None:
            row.said = list(Output.objects.filter(job__member=row.seen.member).order_by("attempt"))
            row.origin = run_of(row.seen) if request.user.has_perm("django_delayq.view_run") else None
        return row  # type: ignore[no-any-return]

    @admin.display(description=gettext_lazy("handed over by"))
    def origin(self, row: Any) -> Html:
        """Return a link to the run of a schedule that has enqueued the job."""
        run = row.origin
        url = self.address("change", run.pk, model="run")
        return format_html('<a href="{}">{}</a> {}', url, run.schedule_name, display.instant(run.due_at))

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
        context["orders"] = self.orders_of(request, context["original"].seen)
        return super().render_change_form(request, context, *args, **kwargs)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        fields: list[str] = flatten_fieldsets(self.get_fieldsets(request, obj))
        return fields

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return what there is to tell of a job: of one that cannot be read only what Redis tells beside its text."""
        seen = obj.seen
        state = ("about_state", "lease") if seen.worker else "about_state"
        try:
            call, record = seen.read()
        except UnreadableJob:
            return [
                (None, {"fields": ("state", "queue", "job_id", "size")}),
                (gettext_lazy("Time"), {"fields": (state, "workers") if seen.worker else (state,)}),
            ]
        outcome = [*(["errors"] if record.errors else []), *(["result"] if record.status == "SUCCESSFUL" else [])]
        times = [
            ("enqueued", "run_after") if call.run_after is not None else "enqueued",
            state,
            *([("started", "attempted")] if record.started is not None else []),
            *(["finished"] if record.finished is not None else []),
        ]
        return [
            (None, {"fields": ["state", "task_path", ("queue", "priority"), "job_id", *["origin"] * bool(obj.origin)]}),
            *([(gettext_lazy("Outcome"), {"fields": outcome})] if outcome else []),
            *([(gettext_lazy("Output"), {"fields": ("output",)})] if obj.said or record.workers else []),
            *([(gettext_lazy("Attempts"), {"fields": ("history",)})] if len(shown.history(seen)) > 1 else []),
            *([(gettext_lazy("Arguments"), {"fields": ("args", "kwargs")})] if self.may_see_arguments(request) else []),
            (gettext_lazy("Time"), {"fields": times}),
            (gettext_lazy("Execution"), {"fields": (("attempts", "options"), "workers", ("backend", "size"))}),
        ]
