"""The ledger in the admin: runs of schedules and jobs, read-only but for actions. A run's schedule may be deleted."""

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import ledger
from ..backend import DelayQBackend
from ..calls import parse_id
from ..calls.compat import task_backends
from ..calls.handover import REASON as HANDED_OVER
from ..calls.task_options import NAMES as CALLBACKS
from ..models import Origin, Run, Schedule, Status, explain_wait
from ..recurrence.point import utcnow
from ..text import plain, redact
from ..worker.announcing import idempotency_key
from . import display, paging
from .base import ReadOnlyAdmin, column
from .definitions import definition_of_run
from .display import Html, instant
from .failures import ErrorFilter, FailuresPage
from .filters import IndexedFilter, ScheduleFilter

#: A queued job that has been due for longer than this is shown as overdue.
SLACK = timedelta(seconds=5)
#: Maximum characters of a job's arguments in the list.
LINE_SHOWN = 150


class RunChangeList(ChangeList):
    """A page of runs; queued ones have the reason why they wait."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, and the pauses if a row is queued."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        waiting = [run for run in self.result_list if run.status == Status.QUEUED]
        held = ledger.held_back() if waiting else ()
        for run in waiting:
            run.waits = explain_wait(held, (run.queue, run.task))


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin, FailuresPage):
    list_display_links = None
    list_filter = (("status", IndexedFilter), ("origin", IndexedFilter), ScheduleFilter, ErrorFilter)
    search_fields = ("schedule_name", "task")
    search_help_text = gettext_lazy("Schedule, task, or id of a job; in a long ledger, schedules and the newest jobs")
    hidden_columns = ("result", "attempts", "outputs", "call", "options", "unique_key")
    sortable_by = ()
    list_per_page = 50
    paginator = paging.CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    class Media:
        js = ("django_delayq/copy.js",)

    def get_urls(self) -> list[URLPattern]:
        return [*self.order_urls(), *self.failures_urls(), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Return runs without `attempts`, which may be long and is shown on one page only."""
        return super().get_queryset(request).defer("attempts")

    def may_see_arguments(self, request: HttpRequest) -> bool:
        """Return whether the user may view arguments of jobs: a separate permission, included in `change_run`."""
        return any(map(request.user.has_perm, ("django_delayq.change_run", "django_delayq.view_job_arguments")))

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RunChangeList]:
        return RunChangeList

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        first = "called" if self.may_see_arguments(request) else "shown_title"
        return first, "shown_due", "shown_end", "shown_lag", "shown_duration", "shown_place"

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
        if not text or not paging.is_long(self.get_queryset(request)):
            return super().get_search_results(request, queryset, search_term)
        schedules = Schedule.objects.order_by().filter(Q(name__icontains=text) | Q(task__icontains=text))
        pks = list(schedules.values_list("pk", flat=True)[: paging.MOST_FOUND + 1])
        if len(pks) > paging.MOST_FOUND:
            said = _("More than %(count)d schedules or their tasks match “%(text)s”: not listed. Type more of it.")
            self.message_user(request, said % {"count": paging.MOST_FOUND, "text": text}, messages.WARNING)
            pks = []
        runs = self.model._default_manager.order_by("-pk")
        before = paging.key_before_newest(runs, paging.MOST_COUNTED)
        jobs = runs.filter(pk__gt=before, origin=Origin.JOB, task__icontains=text).values_list("pk", flat=True)
        return queryset.filter(Q(schedule_id__in=pks) | Q(pk__in=list(jobs[: paging.MOST_FOUND]))), False

    @admin.display(description=gettext_lazy("schedule or task"))
    def shown_title(self, run: Run) -> SafeString:
        """Link to the run by its schedule's name, or to a job by its task, with the id below."""
        url, note = self.address("change", run.pk), run.result_id
        name: Html = display.breakable(plain(run.task.rpartition(".")[2])) if note else run.title
        below = format_html('<div class="delayq-note delayq-path">{}</div>', note) if note else ""
        return format_html('<a href="{}" title="{}">{}</a>{}', url, plain(run.task), name, below)

    @admin.display(description=gettext_lazy("schedule or task"))
    def called(self, run: Run) -> SafeString:
        """Add a job's arguments to `shown_title`, on one line and with secrets redacted."""
        call = run.call or {}
        line = display.argument_line(run.task, call.get("args") or [], call.get("kwargs") or {}) if call else ""
        line = line if len(line) <= LINE_SHOWN else f"{line[:LINE_SHOWN]}…"
        below = format_html('<div class="delayq-path delayq-json">{}</div>', line) if line else ""
        return format_html("{}{}", self.shown_title(run), below)

    @admin.display(description=gettext_lazy("due"))
    def shown_due(self, run: Run) -> Html:
        """Format the due time, an unusual origin, and for a queued job how long and why it waits."""
        if run.origin == Origin.DUE:
            return instant(run.due_at)
        notes: list[Html] = [run.get_origin_display()]
        now = utcnow()
        if run.origin == Origin.JOB and run.status == Status.QUEUED:
            notes.append(display.relative(run.due_at, now))
            if now - run.due_at > SLACK:
                waits = getattr(run, "waits", "")
                notes.append(display.sentence("warn", waits) if waits else display.badge("warn", _("overdue")))
        return format_html('{}<div class="delayq-note">{}</div>', instant(run.due_at), display.joined(notes))

    # One run

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the sections that apply to this run."""
        if obj is None:
            return []
        job, former = obj.origin == Origin.JOB, ledger.attempts_of(obj)
        state = ("task", "queue"), ("shown_status", "shown_reason")
        times: list[Any] = [("due", "claimed"), ("started", "finished"), ("shown_lag", "shown_duration")]
        execution: list[Any] = [("worker", "attempt", "reclaims")]
        if job:
            about: list[Any] = [*state, ("shown_origin", "shown_id")]
            times.append(("created", "expires"))
            execution += [("backend", "priority"), ("shown_options", "shown_unique")]
        else:
            execution.append("shown_key")
            about = ["shown_schedule", *state, ("shown_origin", "shown_points"), *["shown_job"] * bool(_job_of(obj))]
        sees_definition = not job and self._schedules.has_view_permission(request)
        parts = [
            (None, about, True),
            (gettext_lazy("Outcome"), ["shown_error", "shown_result"], True),
            (gettext_lazy("Output"), ["shown_output"], obj.said),
            (gettext_lazy("Attempts"), ["shown_attempts"], len(former) > 1 or (former and obj.started_at is None)),
            (gettext_lazy("Arguments"), ["shown_args", "shown_kwargs"], job and self.may_see_arguments(request)),
            (gettext_lazy("Time"), times, True),
            (gettext_lazy("Execution"), execution, True),
            (gettext_lazy("Definition"), ["definition"], sees_definition),
        ]
        return [(title, {"fields": fields}) for title, fields, shown in parts if shown]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Run | None:
        """Return a run with its captured output in `said`."""
        run: Any = super().get_object(request, object_id, from_field)
        if run is not None:
            run.said = list(run.outputs.order_by("attempt"))
        return run  # type: ignore[no-any-return]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        run = kwargs.get("obj")
        if run is not None:
            context["orders"] = self.orders_of(request, run)
        if run is not None and run.status in (Status.FAILED, Status.LOST) and self._may_run(request, run):
            context["again"] = self.address("run-now", run.schedule_id, model="schedule")
        return super().render_change_form(request, context, *args, **kwargs)

    def _may_run(self, request: HttpRequest, run: Run) -> bool:
        return self._schedules.may(request, "run_now") and _is_there(run)

    @admin.display(description=gettext_lazy("schedule"))
    def shown_schedule(self, run: Run) -> Html:
        """Link to the schedule, or show its former name if it is deleted."""
        if not _is_there(run):
            return _("%(name)s (deleted)") % {"name": run.schedule_name}
        url = self.address("change", run.schedule_id, model="schedule")
        return format_html('<a href="{}">{}</a>', url, run.schedule_name)

    @admin.display(description=gettext_lazy("due points"))
    def shown_points(self, run: Run) -> Html:
        """Format how many due points a skipped run covers, and its end."""
        points = str(run.points) if run.points else _("an unknown number")
        if run.last_due_at is None:
            return points
        return format_html("{}, {} {}", points, _("the last at"), instant(run.last_due_at))

    @admin.display(description=gettext_lazy("that it ran with"))
    def definition(self, run: Run) -> Html:
        return definition_of_run(run, self.address("history", run.schedule_id, model="schedule"))

    @admin.display(description=gettext_lazy("handed over as"))
    def shown_job(self, run: Run) -> Html:
        """Link to the job that the run was handed over as."""
        wanted = _job_of(run)
        url = self.address("change", wanted.partition("-")[0])
        return format_html('<a href="{}" class="delayq-signature delayq-id">{}</a>', url, wanted)

    @admin.display(description=gettext_lazy("options of its own"))
    def shown_options(self, run: Run) -> str:
        """Format the options that the call itself sets: attempts, backoff, timeout and callbacks."""
        given = run.options or {}
        numbers = [f"{name} {given[name]:g}" for name in ("max_attempts", "backoff", "timeout") if name in given]
        return ", ".join([*numbers, *(f"{name} {plain(given[name])}" for name in CALLBACKS if name in given)]) or "–"

    @admin.display(description=gettext_lazy("unique key"))
    def shown_unique(self, run: Run) -> str:
        """Format whether the job holds a unique key, and until when."""
        given = run.options or {}
        if "unique_key" not in given:
            return "–"
        if run.unique_key is None:
            return _("not held any more")
        return _("held until it has ended") if given.get("unique_until") == "end" else _("held until it starts")

    shown_status = column(gettext_lazy("status"), lambda run: display.status_badge(run.status))
    shown_reason = column(gettext_lazy("reason"), display.reason_words)
    shown_end = column(
        gettext_lazy("status"),
        lambda run: format_html(
            '{}<div class="delayq-error">{}</div>', display.status_badge(run.status), display.reason_words(run)
        ),
    )
    shown_origin = column(gettext_lazy("origin"), Run.get_origin_display)
    shown_lag = column(gettext_lazy("lag"), display.shown_lag)
    shown_duration = column(gettext_lazy("duration"), lambda run: display.milliseconds(run.duration))
    shown_place = column(
        gettext_lazy("queue and worker"),
        lambda run: format_html('{}<div class="delayq-note">{}</div>', run.queue, plain(run.worker)),
    )
    shown_id = column(gettext_lazy("id"), lambda run: display.identity(run.result_id))
    due = column(gettext_lazy("due"), lambda run: instant(run.due_at, millis=True))
    claimed = column(gettext_lazy("claimed"), lambda run: instant(run.claimed_at, millis=True))
    started = column(gettext_lazy("started"), lambda run: instant(run.started_at, millis=True))
    finished = column(gettext_lazy("finished"), lambda run: instant(run.finished_at, millis=True))
    created = column(gettext_lazy("enqueued"), lambda run: instant(run.created_at, millis=True))
    expires = column(gettext_lazy("kept until"), lambda run: instant(run.expires_at, millis=True))
    shown_args = column(gettext_lazy("positional arguments"), lambda run: display.arguments_of(run)[0])
    shown_kwargs = column(gettext_lazy("keyword arguments"), lambda run: display.arguments_of(run)[1])
    shown_result = column(
        gettext_lazy("result"),
        lambda run: "–" if run.result is None else display.block(display.pretty_json(redact(run.result))),
    )
    shown_attempts = column(gettext_lazy("all attempts"), display.attempts_table)
    shown_output = column(gettext_lazy("logged and printed"), lambda run: display.said(run.said))
    shown_key = column(gettext_lazy("idempotency key"), lambda run: display.identity(idempotency_key(run)))
    shown_error = column(gettext_lazy("error"), lambda run: display.traceback(display.redacted(run, run.error)))


def _is_there(run: Run) -> bool:
    return run.schedule_id is not None and Schedule.objects.filter(pk=run.schedule_id).exists()


def _job_of(run: Run) -> str:
    """Return the id of the job that a run became when handed over to a `DelayQBackend`, else ''."""
    given: Any = run.result if run.reason == HANDED_OVER else None
    if not isinstance(given, dict) or parse_id(str(given.get("result_id"))) is None:
        return ""
    try:
        ours = isinstance(task_backends[str(given.get("backend"))], DelayQBackend)
    except Exception:  # the alias no longer exists, or its settings are wrong
        return ""
    return str(given["result_id"]) if ours else ""
