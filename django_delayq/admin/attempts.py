"""The attempts of a run or of a job as a table, with their tracebacks. Escapes everything, reads nothing."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..history import Attempt, bounded
from ..plain import plain
from ..timing import from_ms
from .display import block, instant, milliseconds


def table(attempts: Sequence[Attempt], redact: Callable[[str], str]) -> SafeString:
    """Return the table, oldest first; `redact` hides in titles and tracebacks what is not to be shown."""
    heads = (_("Number"), _("Start"), _("End"), _("Duration"), _("Worker"), _("Error"))
    return format_html(
        '<div class="delayq-scroll"><table class="delayq-table delayq-attempts"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>",
        format_html_join("", '<th scope="col">{}</th>', ((head,) for head in heads)),
        format_html_join("", "{}", ((_row(attempt, redact),) for attempt in bounded(attempts))),
    )


def moment(value_ms: int | None) -> datetime | None:
    """Return ms since the epoch as an instant; None also for what lies beyond the calendar."""
    try:
        return None if value_ms is None else from_ms(value_ms)
    except (OverflowError, ValueError):  # garbage under our keys
        return None


def _row(attempt: Attempt, redact: Callable[[str], str]) -> SafeString:
    started, finished = moment(attempt.started), moment(attempt.finished)
    took: timedelta | None = None if started is None or finished is None else finished - started
    end: SafeString | str = instant(finished, millis=True) if attempt.ended else _("did not end")
    return format_html(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td></tr>",
        attempt.number,
        instant(started, millis=True),
        end,
        milliseconds(took),
        plain(attempt.worker) or "–",
        _title(attempt, redact),
        _trace(attempt, redact),
    )


def _title(attempt: Attempt, redact: Callable[[str], str]) -> str:
    if not attempt.ended:
        return _("Its worker did not end it.")
    return plain(redact(attempt.title)) or "–"


def _trace(attempt: Attempt, redact: Callable[[str], str]) -> SafeString | str:
    if not attempt.trace:
        return ""
    shown = block(plain(redact(attempt.trace), keep="\n\t"), "delayq-pre delayq-trace")
    return format_html("<details><summary>{}</summary>{}</details>", _("Traceback"), shown)
