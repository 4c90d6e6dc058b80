"""The ledger in the admin: runs of schedules and jobs, read-only but for actions. A run's schedule may be deleted."""

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import ledger
from ..calls import parse_id
from ..calls.handover import REASON as HANDED_OVER
from ..calls.task_options import NAMES as CALLBACKS
from ..models import Origin, Run, Schedule, Status, explain_wait
from ..recurrence.point import utcnow
from ..text import escape_text, redact
from . import display
from .base import ReadOnlyAdmin, column, find_key_before_newest, is_long
from .display import Html, format_instant
from .failure_groups import ErrorFilter, FailuresPage
from .filters import IndexedFilter, ScheduleFilter
from .run_actions import FAILED
from .schedule_history import format_run_definition

#: A queued job that has been due for longer than this is shown as overdue.
SLACK = timedelta(seconds=5)
#: Maximum schedules that a search in a long ledger matches.
MOST_FOUND = 1_000
#: Maximum characters of a job's arguments in the list.
LINE_SHOWN = 150


class RunChangeList(ChangeList):
    """A page of runs. Queued ones have the reason why they wait, jobs their arguments if the user may see them."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        held = ledger.load_controls() if any(run.status == Status.QUEUED for run in self.result_list) else ()
        for run in self.result_list:
            run.waits = explain_wait(held, (run.queue, run.task)) if run.status == Status.QUEUED else ""
            run.line = display.format_argument_line(*_get_call(run)) if can_view_arguments(request) else ""


def can_view_arguments(request: HttpRequest) -> bool:
    """Return whether the user may view arguments of jobs: a separate permission, included in `change_run`."""
    return any(map(request.user.has_perm, ("django_delayq.change_run", "django_delayq.view_job_arguments")))


def _get_call(run: Run) -> tuple[str, list[Any], dict[str, Any]]:
    call = run.call or {}
    return run.task, call.get("args") or [], call.get("kwargs") or {}


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin, FailuresPage):
    list_display = ("title_column", "due_column", "end_column", "latency_column", "duration_column", "place_column")
    list_display_links = None
    list_filter = (("status", IndexedFilter), ("origin", IndexedFilter), ScheduleFilter, ErrorFilter)
    search_fields = ("schedule_name", "task")
    search_help_text = gettext_lazy(
        "Schedule, task, or id of a job; in a long list, the beginning of a schedule's name, or a task of a recent job"
    )
    hidden_columns = ("result", "attempts", "outputs", "call", "options", "unique_key")
    sortable_by = ()

    class Media:
        js = ("django_delayq/copy.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        return super().get_queryset(request).defer("attempts")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RunChangeList

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the newest first; for one schedule by due point, as its index is sorted."""
        return ("-due_at", "-pk") if ScheduleFilter.parameter_name in request.GET else ("-pk",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        """Find a job by id, else search all texts. In a long ledger, search schedules and the newest jobs only."""
        text = search_term.strip()
        if (wanted := parse_id(text)) is not None:
            return queryset.filter(pk=wanted[0], token=wanted[1]), False
        if not text or not is_long(self.get_queryset(request)):
            return super().get_search_results(request, queryset, search_term)
        schedules = Schedule.objects.order_by().filter(name__startswith=text)
        pks = list(schedules.values_list("pk", flat=True)[: MOST_FOUND + 1])
        if len(pks) > MOST_FOUND:
            note = _("More than %(count)d schedules match “%(text)s”: not listed. Type more of the name.")
            self.message_user(request, note % {"count": MOST_FOUND, "text": text}, messages.WARNING)
            pks = []
        # read first: with both conditions in one OR, SQLite scans the whole ledger
        rows = self.model._default_manager.all()
        newest = rows.filter(pk__gt=find_key_before_newest(rows), origin=Origin.JOB, task__icontains=text)
        jobs = list(newest.order_by("-pk").values_list("pk", flat=True)[:MOST_FOUND])
        return queryset.filter(Q(schedule_id__in=pks) | Q(pk__in=jobs)), False

    @admin.display(description=gettext_lazy("schedule or task"))
    def title_column(self, run: Any) -> SafeString:
        url, note, line = self.get_url("change", run.pk), run.result_id, Truncator(run.line).chars(LINE_SHOWN)
        if not note:
            return format_html('<a href="{}" title="{}">{}</a>', url, escape_text(run.task), run.title)
        return format_html(
            '<a href="{}" title="{}">{}</a><div class="delayq-note delayq-path">{}</div>'
            '<div class="delayq-path delayq-json">{}</div>',
            url, escape_text(run.task), display.format_breakable(escape_text(run.task.rpartition(".")[2])), note, line,
        )  # fmt: skip

    @admin.display(description=gettext_lazy("due"))
    def due_column(self, run: Any) -> Html:
        """Format the due time, an unusual origin, and for a queued job how long and why it waits."""
        if run.origin == Origin.DUE:
            return format_instant(run.due_at)
        notes: list[Html] = [run.get_origin_display()]
        now = utcnow()
        if run.origin == Origin.JOB and run.status == Status.QUEUED:
            notes.append(display.format_relative(run.due_at, now))
            if now - run.due_at > SLACK:
                show = display.format_sentence if run.waits else display.format_badge
                notes.append(show("warn", run.waits or _("overdue")))
        below = format_html_join(" ", "{}", ((note,) for note in notes))
        return format_html('{}<div class="delayq-note">{}</div>', format_instant(run.due_at), below)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        job, former = obj.origin == Origin.JOB, ledger.list_attempts(obj)
        state = ("task", "queue"), ("status_column", "reason_column")
        times: list[Any] = [("due", "claimed"), ("started", "finished"), ("latency_column", "duration_column")]
        execution: list[Any] = [("worker", "attempt", "reclaims")]
        if job:
            about: list[Any] = [*state, ("origin_column", "id_column")]
            times.append(("created", "expires"))
            execution += [("backend", "priority"), "options_column"]
        else:
            execution.append("key_column")
            handed_over = ["job_column"] if _find_job_id(obj) else []
            about = ["schedule_column", *state, ("origin_column", "points_column"), *handed_over]
        sees_definition = not job and self.schedules.has_view_permission(request)
        parts = [
            (None, about, True),
            (gettext_lazy("Outcome"), ["error_column", "result_column"], True),
            (gettext_lazy("Output"), ["output_column"], obj.outputs_read),
            (gettext_lazy("Attempts"), ["attempts_column"], len(former) > 1 or (former and obj.started_at is None)),
            (gettext_lazy("Arguments"), ["args_column", "kwargs_column"], job and can_view_arguments(request)),
            (gettext_lazy("Time"), times, True),
            (gettext_lazy("Execution"), execution, True),
            (gettext_lazy("Definition"), ["definition"], sees_definition),
        ]
        return [(title, {"fields": fields}) for title, fields, shown in parts if shown]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Run | None:
        run: Any = super().get_object(request, object_id, from_field)
        if run is not None:
            run.outputs_read = list(run.outputs.order_by("attempt"))
        return run  # type: ignore[no-any-return]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        run = kwargs["obj"]
        context["buttons"] = self.list_buttons(request, run)
        if run.status in FAILED and self.schedules.can_act(request, "run_now") and _is_there(run):
            context["again"] = self.get_url("run_now", run.schedule_id, model="schedule")
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=gettext_lazy("schedule"))
    def schedule_column(self, run: Run) -> Html:
        if not _is_there(run):
            return _("%(name)s (deleted)") % {"name": run.schedule_name}
        url = self.get_url("change", run.schedule_id, model="schedule")
        return format_html('<a href="{}">{}</a>', url, run.schedule_name)

    @admin.display(description=gettext_lazy("due times"))
    def points_column(self, run: Run) -> Html:
        points = str(run.points) if run.points else _("an unknown number")
        if run.last_due_at is None:
            return points
        return format_html("{}, {} {}", points, _("last at"), format_instant(run.last_due_at))

    @admin.display(description=gettext_lazy("that it ran with"))
    def definition(self, run: Run) -> Html:
        return format_run_definition(run, self.get_url("history", run.schedule_id, model="schedule"))

    @admin.display(description=gettext_lazy("handed over as"))
    def job_column(self, run: Run) -> Html:
        job = _find_job_id(run)
        url = self.get_url("change", job.partition("-")[0])
        return format_html('<a href="{}" class="delayq-signature delayq-id">{}</a>', url, job)

    @admin.display(description=gettext_lazy("its own options"))
    def options_column(self, run: Run) -> str:
        given = run.options or {}
        parts = [f"{name} {given[name]:g}" for name in ("max_attempts", "backoff", "timeout") if name in given]
        parts += [f"{name} {escape_text(given[name])}" for name in CALLBACKS if name in given]
        if "unique_key" in given:
            held = _("held until it has ended") if given.get("unique_until") == "end" else _("held until it starts")
            parts.append(f"{_('unique key')} {_('no longer held') if run.unique_key is None else held}")
        return ", ".join(parts) or "–"

    status_column = column(gettext_lazy("status"), lambda run: display.format_status(run.status))
    reason_column = column(gettext_lazy("reason"), display.describe_reason)
    end_column = column(
        gettext_lazy("status"),
        lambda run: format_html(
            '{}<div class="delayq-error">{}</div>', display.format_status(run.status), display.describe_reason(run)
        ),
    )
    origin_column = column(gettext_lazy("origin"), Run.get_origin_display)
    latency_column = column(gettext_lazy("latency"), display.format_latency)
    duration_column = column(gettext_lazy("duration"), lambda run: display.format_span(run.duration))
    place_column = column(
        gettext_lazy("queue and worker"),
        lambda run: format_html('{}<div class="delayq-note">{}</div>', run.queue, escape_text(run.worker)),
    )
    id_column = column(gettext_lazy("id"), lambda run: display.format_identity(run.result_id))
    due = column(gettext_lazy("due"), lambda run: format_instant(run.due_at, millis=True))
    claimed = column(gettext_lazy("claimed"), lambda run: format_instant(run.claimed_at, millis=True))
    started = column(gettext_lazy("started"), lambda run: format_instant(run.started_at, millis=True))
    finished = column(gettext_lazy("finished"), lambda run: format_instant(run.finished_at, millis=True))
    created = column(gettext_lazy("enqueued"), lambda run: format_instant(run.created_at, millis=True))
    expires = column(gettext_lazy("kept until"), lambda run: format_instant(run.expires_at, millis=True))
    args_column = column(gettext_lazy("positional arguments"), lambda run: display.format_arguments(*_get_call(run))[0])
    kwargs_column = column(gettext_lazy("keyword arguments"), lambda run: display.format_arguments(*_get_call(run))[1])
    result_column = column(
        gettext_lazy("result"),
        lambda run: "–" if run.result is None else display.format_block(display.format_json(redact(run.result))),
    )
    attempts_column = column(gettext_lazy("all attempts"), display.render_attempts)
    output_column = column(gettext_lazy("log and output"), lambda run: display.format_outputs(run.outputs_read))
    key_column = column(gettext_lazy("idempotency key"), lambda run: display.format_identity(run.idempotency_key))
    error_column = column(
        gettext_lazy("error"), lambda run: display.format_traceback(display.redact_run_text(run, run.error))
    )


def _is_there(run: Run) -> bool:
    return run.schedule_id is not None and Schedule.objects.filter(pk=run.schedule_id).exists()


def _find_job_id(run: Run) -> str:
    """Return the id of the job that a run became when handed over to a `DelayQBackend`, else ''."""
    given: Any = run.result if run.reason == HANDED_OVER and isinstance(run.result, dict) else {}
    job = parse_id(str(given.get("result_id")))
    return str(given["result_id"]) if job is not None and ledger.find_job(*job) is not None else ""
