"""Small pieces of HTML: badges, instants, durations, JSON. Escapes all data; contains no logic."""

import inspect
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import ledger
from ..calls import registry
from ..calls.handover import REASON as REASON_HANDED_OVER
from ..exceptions import InvalidRecurrence
from ..models import Output, Run, Schedule, Status
from ..recurrence.point import try_from_ms
from ..recurrence.zone import get_zone
from ..text import escape_text, find_secret_texts, redact_arguments, redact_text

Html = SafeString | str
#: Maximum characters of a text; more are cut from the middle, with a note.
MOST_CHARACTERS = 100_000
#: Units of a duration.
UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "us": timedelta(microseconds=1),
}
_TONES: dict[str, str] = {
    Status.SUCCEEDED: "good",
    Status.FAILED: "bad",
    Status.LOST: "bad",
    Status.RUNNING: "busy",
    Status.RETRYING: "warn",
    Status.QUEUED: "busy",
}


def format_badge(tone: str, text: Any, title: Any = "") -> SafeString:
    """Return a small coloured label, whose text alone has the meaning."""
    more = format_html(' title="{}"', title) if title else ""
    return format_html('<span class="delayq-badge delayq-{}"{}>{}</span>', tone, more, text)


def format_sentence(tone: str, text: Any) -> SafeString:
    """Return a coloured sentence, for text too long for a badge."""
    return format_html('<div class="delayq-tone delayq-{}">{}</div>', tone, text)


def format_breakable(name: str) -> SafeString:
    return format_html_join(mark_safe("_<wbr>"), "{}", ((part,) for part in name.split("_")))


def get_tone(status: str) -> str:
    return _TONES.get(status, "quiet")


def format_status(status: str) -> SafeString:
    label = Status(status).label if status in Status.values else status
    return format_badge(get_tone(status), label)


_REASONS = {
    "overlap": gettext_lazy("overlap: the previous run was still busy"),
    "missed": gettext_lazy("missed: no worker was free in time"),
    "poison": gettext_lazy("poison: each worker that ran it died"),
}


def describe_reason(run: Run) -> str:
    """Return why a run did not succeed, or the backend that it was handed over to."""
    if run.status in (Status.SKIPPED, Status.LOST) and run.reason in _REASONS:
        return str(_REASONS[run.reason])
    if run.reason == REASON_HANDED_OVER and isinstance(run.result, dict):
        return _("handed over to %(backend)s") % {"backend": run.result.get("backend")}
    return escape_text(redact_run_text(run, run.reason))


def redact_run_text(run: Run, text: str) -> str:
    """Return a text about a run, without the secrets in a job's arguments."""
    call = run.call or {}
    secrets = find_secret_texts(call.get("args"), call.get("kwargs"), find_parameters(run.task)) if call else []
    return redact_text(text, secrets)


def format_latency(run: Run) -> Html:
    return "–" if run.started_at is None else format_span(run.latency)


def find_zone(schedule: Schedule) -> tzinfo:
    """Return the schedule's zone, or UTC if the system does not know it."""
    try:
        return get_zone(schedule.timezone)
    except InvalidRecurrence:
        return UTC


def format_instant(value: datetime | None, zone: tzinfo | None = None, *, millis: bool = False) -> Html:
    """Format an instant, by default in the current zone, with UTC as title; `millis` adds ms and the zone's name."""
    if value is None:
        return "–"
    local = timezone.localtime(value, zone)
    shown = f"{local:%Y-%m-%d %H:%M:%S}"
    return format_html(
        '<time class="delayq-time" datetime="{}" title="{}">{}</time>',
        value.isoformat(),
        f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC",
        f"{shown}.{local.microsecond // 1000:03} {local:%Z}" if millis else shown,
    )


def format_duration(value: timedelta, parts: int | None = None) -> str:
    """Return `1h 30m`, exactly, or only the first `parts` units."""
    shown: list[str] = []
    for name, length in UNITS.items():
        amount, value = divmod(value, length)
        if amount:
            shown.append(f"{amount}{name}")
        if shown and len(shown) == parts:
            break
    return " ".join(shown) or "0s"


def format_relative(value: datetime, now: datetime) -> str:
    """Return "in 3m 20s" or "2h ago"."""
    span = timedelta(seconds=round(abs((value - now).total_seconds())))
    text = format_duration(span, parts=2)
    return _("in %(span)s") % {"span": text} if value > now else _("%(span)s ago") % {"span": text}


def format_span(value: timedelta | None) -> Html:
    """Format a duration as "12 ms", "4.21 s" or "1m 5s"."""
    if value is None:
        return "–"
    seconds = value.total_seconds()
    if abs(seconds) < 1:
        text = f"{seconds * 1000:.0f} ms"
    elif abs(seconds) < 60:
        text = f"{seconds:.2f} s"
    else:
        text = format_duration(timedelta(seconds=round(seconds)), parts=2)
    return format_html('<span class="delayq-whole">{}</span>', text)


def format_json(value: Any) -> str:
    """Return indented JSON that can be encoded; short values stay on one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > 60:
        text = json.dumps(value, ensure_ascii=False, default=str, indent=2)
    return text.encode(errors="backslashreplace").decode()  # half of a surrogate pair becomes its escape


def format_block(text: str, css_class: str = "delayq-pre") -> Html:
    """Return a long text as written, scrollable, cut to MOST_CHARACTERS."""
    if not text:
        return "–"
    if len(text) > MOST_CHARACTERS:
        cut = _("%(count)d characters left out") % {"count": len(text) - MOST_CHARACTERS}
        text = f"{text[: MOST_CHARACTERS // 2]}\n\n… {cut} …\n\n{text[-MOST_CHARACTERS // 2 :]}"
    return format_html('<pre class="{}" tabindex="0">{}</pre>', css_class, escape_text(text, keep="\n\t"))


def format_traceback(text: str) -> Html:
    return format_block(text, "delayq-pre delayq-trace")


def format_identity(text: str) -> SafeString:
    return format_html('<code class="delayq-signature delayq-id">{}</code>', text)


def format_outputs(outputs: Iterable[Output]) -> Html:
    parts = [(_("Attempt %(number)d") % {"number": each.attempt}, format_block(each.text)) for each in outputs]
    return format_html("<div>{}</div>", format_html_join("", '<p class="delayq-note">{}</p>{}', parts))


def format_arguments(task: str, args: Any, kwargs: Any) -> list[Html]:
    return [format_block(format_json(each)) for each in redact_arguments(args, kwargs, find_parameters(task))]


def format_argument_line(task: str, args: Any, kwargs: Any) -> str:
    """Format arguments on one line, with secrets redacted."""
    args, kwargs = redact_arguments(args, kwargs, find_parameters(task))
    texts = [json.dumps(each, ensure_ascii=False, default=str) for each in args]
    texts += [f"{name}={json.dumps(each, ensure_ascii=False, default=str)}" for name, each in kwargs.items()]
    return escape_text(", ".join(texts))


def find_parameters(task: str) -> list[inspect.Parameter] | None:
    """Return a task's parameters; None also if its code cannot be imported, which the checks report."""
    try:
        return registry.find_parameters(task)
    except Exception:
        return None


def render_attempts(run: Run) -> str:
    rows = []
    for attempt in ledger.list_attempts(run):
        started, finished = try_from_ms(attempt.started), try_from_ms(attempt.finished)
        rows.append({
            "attempt": attempt,
            "started": format_instant(started, millis=True),
            "finished": format_instant(finished, millis=True),
            "duration": format_span(None if started is None or finished is None else finished - started),
            "worker": escape_text(attempt.worker),
            "title": escape_text(redact_run_text(run, attempt.title)),
            "trace": attempt.trace and format_traceback(redact_run_text(run, attempt.trace)),
        })  # fmt: skip
    return render_to_string("admin/django_delayq/attempts.html", {"rows": rows})
