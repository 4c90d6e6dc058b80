"""A job in words and small pieces of HTML, without the secrets that it was called with. Reads nothing."""

from collections.abc import Sequence
from datetime import timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import conf
from ..backend.listing import Flaw, JobState, SeenJob
from ..fields import utcnow
from ..history import Attempt, followed_by
from ..jobs import attempts_of
from ..jobs.callbacks import NAMES as CALLBACKS
from ..models import Output
from ..plain import plain
from ..redaction import redact, redact_text
from ..timing.point import known_ms
from . import display
from .display import Html, attempts_table, badge, block, instant, pretty_json, relative, sentence
from .job_list import WORDS, error_of, secrets_of

#: What is ready for longer than this, or waits for a time that has passed by more, is told as late.
SLACK = timedelta(seconds=5)
#: So much of an error's last line is shown in the list.
LINE_SHOWN = 150


def instant_of(value_ms: int | None) -> Html:
    return instant(known_ms(value_ms), millis=True)


def state(seen: SeenJob) -> SafeString:
    """Return the label of a job's state, and what is wrong with its text. One that has ended says how."""
    if seen.state == JobState.ENDED and seen.record is not None:
        good = seen.record.status == "SUCCESSFUL"
        label = badge("good" if good else "bad", _("successful") if good else _("failed"))
    else:
        label = badge(WORDS[seen.state].tone, WORDS[seen.state].label)
    return format_html("{} {}", label, _flaw(seen))


def _flaw(seen: SeenJob) -> Html:
    if seen.flaw == Flaw.FORGED:
        title = _(
            "Somebody else wrote it, or the key has changed. Only a worker that knows its key executes it; nothing of "
            "it is read here."
        )
        return badge("bad", _("not signed for this queue with this project's key"), title)
    return badge("bad", _("cannot be read"), _("Another version may have written it.")) if seen.flaw else ""


def task_name(seen: SeenJob, url: str) -> SafeString:
    """Return the task with a link to the job; its id below."""
    shown_id = plain(seen.result_id or f"{seen.shard.queue}.{seen.member}"[:100])
    if seen.call is None:
        name = _flaw(seen)
    else:
        path = plain(seen.call.task)
        name = format_html('<span title="{}">{}</span>', path, display.breakable(path.rpartition(".")[2]))
    linked = format_html('<a href="{}">{}</a>', url, name) if url else name
    return format_html('{}<div class="delayq-note delayq-path">{}</div>', linked, shown_id)


def when(seen: SeenJob, waits: str = "") -> Html:
    """Return the instant that its state is about, how far away it is, and whether that is too long.

    `waits` is what `explain_wait` says of the job.
    """
    at, now = known_ms(seen.at_ms), utcnow()
    if at is None:
        return "–"
    note: Html = ""
    if seen.state in (JobState.WAITING, JobState.READY) and now - at > SLACK:
        note = sentence("warn", waits) if waits else badge("warn", _("overdue"))
    lease = known_ms(seen.lease_until_ms)
    if seen.state == JobState.RUNNING and (lease is None or lease < now):
        note = badge("warn", _("lease ended"), _("Its worker may be dead. Another one will take the job."))
    return format_html('{}<div class="delayq-note">{} {}</div>', instant(at), relative(at, now), note)


def about_state(seen: SeenJob) -> Html:
    return "–" if seen.at_ms is None else format_html(WORDS[seen.state].instant, instant_of(seen.at_ms))


def took(seen: SeenJob) -> Html:
    """Return how long the last attempt took."""
    record = seen.read()[1]
    began, ended = known_ms(record.attempted), known_ms(record.finished)
    return display.milliseconds(None if began is None or ended is None else ended - began)


def attempts(seen: SeenJob) -> str:
    """Return how many attempts were made, and of how many where the job itself says so."""
    call, record = seen.read()
    made = str(len(record.workers))
    return made if call.max_attempts is None else f"{made} / {call.max_attempts}"


def last_line(seen: SeenJob) -> Html:
    """Return the last line of the last error."""
    path, line = error_of(*seen.read())
    line = plain(line.strip() or path) or "–"
    return format_html(
        '<span class="delayq-error">{}</span>', line if len(line) <= LINE_SHOWN else f"{line[:LINE_SHOWN]}…"
    )


def errors(seen: SeenJob) -> Html:
    """Return the errors with their tracebacks, the last one first; only that where the others are in the table."""
    call, record = seen.read()
    secrets = secrets_of(call)
    newest = record.errors[-1:] if len(history(seen)) > 1 else record.errors[::-1]
    shown = ((plain(path), display.traceback(redact_text(trace, secrets))) for path, trace in newest)
    return format_html("<div>{}</div>", format_html_join("", '<p class="delayq-path">{}</p>{}', shown))


def output(seen: SeenJob, outputs: Sequence[Output]) -> Html:
    if outputs:
        return display.said(outputs)
    if seen.in_database:
        kept = conf.get_config().max_output_bytes
        return _("This task logged nothing.") if kept else _("Output is not kept: DELAYQ['MAX_OUTPUT_BYTES'] is 0.")
    return _("Nothing is kept of it. Of jobs that stand in Redis alone only their worker's log has what they say.")


def error_words(seen: SeenJob, text: str) -> Html:
    """Return the fingerprint of the error of such jobs as it may be shown; of those that nobody reads, their flaw."""
    if seen.call is None:
        return _flaw(seen)
    return plain(redact_text(text, secrets_of(seen.call))) or "–"


def history(seen: SeenJob) -> list[Attempt]:
    """Return the attempts, also those of before it was revived, and the one that is being made."""
    found = attempts_of(seen.read()[1])
    return followed_by(found, seen.at_ms, None, seen.worker, "") if seen.worker else found


def all_attempts(seen: SeenJob) -> Html:
    secrets = secrets_of(seen.read()[0])
    return attempts_table(history(seen), lambda text: redact_text(text, secrets))


def arguments(seen: SeenJob) -> list[Html]:
    call, _record = seen.read()
    return display.arguments(call.task, call.args, call.kwargs)


def short_arguments(seen: SeenJob) -> Html:
    """Return the arguments in a line as they may be shown, cut off where that is long."""
    if seen.call is None:
        return ""
    line = display.argument_line(seen.call.task, seen.call.args, seen.call.kwargs)
    shown = line if len(line) <= LINE_SHOWN else f"{line[:LINE_SHOWN]}…"
    return format_html('<div class="delayq-path delayq-json">{}</div>', shown) if line else ""


def result(seen: SeenJob) -> Html:
    """Return what the task returned; what is named like a secret is hidden."""
    record = seen.read()[1]
    return plain(record.left_out) or block(pretty_json(redact(record.value)))


def options(seen: SeenJob) -> str:
    """Return what the call says of retries, where its task and its backend do not, and what follows its end."""
    call, _record = seen.read()
    given = {"max_attempts": call.max_attempts, "backoff": call.backoff, "timeout": call.timeout}
    unique = [_("unique key")] if call.unique else []
    numbers = [f"{name} {value:g}" for name, value in given.items() if value is not None]
    follows = [f"{name} {plain(path)}" for name in CALLBACKS if (path := getattr(call, name))]
    return ", ".join([*numbers, *unique, *follows]) or "–"


def workers(seen: SeenJob) -> Html:
    """Return the workers that tried it, in this order, and the one that holds it."""
    names = [] if seen.record is None else list(map(str, seen.record.workers))
    names += [seen.worker] if seen.worker else []
    return format_html_join(", ", '<span class="delayq-whole">{}</span>', ((plain(name),) for name in names)) or "–"


def size(seen: SeenJob) -> str:
    """Return the length of its text, and whether that stands in the database."""
    text = _("%(count)s characters in the database") if seen.in_database else _("%(count)s characters")
    return text % {"count": f"{seen.size:,}"}
