"""A job in words and small pieces of HTML, without the secrets that it was called with. Reads nothing."""

import inspect
from datetime import timedelta
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import registry
from ..backend.listing import Flaw, JobState, SeenJob
from ..history import Attempt, followed_by
from ..jobs import Call, attempts_of
from ..plain import plain
from ..redaction import redact, redact_arguments, redact_text, secret_texts
from .attempts import moment, table
from .display import badge, block, breakable, instant, pretty_json, relative, utcnow
from .job_list import state_label

#: What is ready for longer than this, or waits for a time that has passed by more, is told as late.
SLACK = timedelta(seconds=5)
#: So much of an error's last line is shown in the list.
LINE_SHOWN = 150
_TONES = {JobState.WAITING: "quiet", JobState.READY: "busy", JobState.RUNNING: "good", JobState.DEAD: "bad"}


def shown_instant(value_ms: int | None, *, millis: bool = True) -> SafeString | str:
    """Return an instant, a dash for none."""
    return instant(moment(value_ms), millis=millis)


def state_badge(seen: SeenJob) -> SafeString:
    """Return the label of a job's state; one that has ended says how."""
    if seen.state == JobState.ENDED and seen.record is not None:
        good = seen.record.status == "SUCCESSFUL"
        return badge("good" if good else "bad", _("successful") if good else _("failed"))
    return badge(_TONES.get(seen.state, "quiet"), state_label(seen.state))


def flaw_badge(seen: SeenJob) -> SafeString | str:
    """Return what is wrong with a job's text."""
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
        name: SafeString | str = flaw_badge(seen)
    else:
        path = plain(seen.call.task)
        name = format_html('<span title="{}">{}</span>', path, breakable(path.rpartition(".")[2]))
    linked = format_html('<a href="{}">{}</a>', url, name) if url else name
    return format_html('{}<div class="delayq-note delayq-path">{}</div>', linked, shown_id)


def when(seen: SeenJob) -> SafeString | str:
    """Return the instant that its state is about, how far away it is, and whether that is too long."""
    at, now = moment(seen.at_ms), utcnow()
    if at is None:
        return "–"
    note: SafeString | str = ""
    if seen.state in (JobState.WAITING, JobState.READY) and now - at > SLACK:
        note = badge("warn", _("overdue"))
    lease = moment(seen.lease_until_ms)
    if seen.state == JobState.RUNNING and (lease is None or lease < now):
        note = badge("warn", _("lease ended"), _("Its worker may be dead. Another one will take the job."))
    return format_html('{}<div class="delayq-note">{} {}</div>', instant(at), relative(at, now), note)


def attempts(seen: SeenJob) -> str:
    """Return how many attempts were made, and of how many where the job itself says so."""
    if seen.record is None or seen.call is None:
        return "–"
    made = str(len(seen.record.workers))
    return made if seen.call.max_attempts is None else f"{made} / {seen.call.max_attempts}"


def last_line(seen: SeenJob) -> str:
    """Return the last line of the last error."""
    if seen.record is None or seen.call is None or not seen.record.errors:
        return "–"
    path, trace = seen.record.errors[-1]
    lines = [line for line in redact_text(trace, _secrets(seen.call)).splitlines() if line.strip()]
    line = plain(lines[-1] if lines else path).strip()
    return line if len(line) <= LINE_SHOWN else f"{line[:LINE_SHOWN]}…"


def errors(seen: SeenJob) -> SafeString | str:
    """Return the errors with their tracebacks, the last one first; only that where the others are in the table."""
    if seen.record is None or seen.call is None or not seen.record.errors:
        return "–"
    secrets = _secrets(seen.call)
    newest = seen.record.errors[-1:] if len(history(seen)) > 1 else seen.record.errors[::-1]
    shown = (
        (
            plain(path),
            block(plain(redact_text(trace, secrets), keep="\n\t"), "delayq-pre delayq-trace"),
        )
        for path, trace in newest
    )
    return format_html("<div>{}</div>", format_html_join("", '<p class="delayq-path">{}</p>{}', shown))


def history(seen: SeenJob) -> list[Attempt]:
    """Return the attempts, also those of before it was revived, and the one that is being made."""
    if seen.record is None:
        return []
    found = attempts_of(seen.record)
    return followed_by(found, seen.at_ms, None, seen.worker, "") if seen.worker else found


def attempts_table(seen: SeenJob) -> SafeString | str:
    """Return all attempts with their tracebacks."""
    if seen.call is None:
        return "–"
    secrets = _secrets(seen.call)
    return table(history(seen), lambda text: redact_text(text, secrets))


def arguments(seen: SeenJob) -> tuple[SafeString | str, SafeString | str]:
    """Return positional and keyword arguments as they may be shown."""
    if seen.call is None:
        return "–", "–"
    args, kwargs = redact_arguments(seen.call.args, seen.call.kwargs, _parameters(seen.call.task))
    return block(pretty_json(args)), block(pretty_json(kwargs))


def result(seen: SeenJob) -> SafeString | str:
    """Return what the task returned; what is named like a secret is hidden."""
    if seen.record is None or seen.record.status != "SUCCESSFUL":
        return "–"
    return plain(seen.record.left_out) or block(pretty_json(redact(seen.record.value)))


def workers(seen: SeenJob) -> SafeString | str:
    """Return the workers that tried it, in this order, and the one that holds it."""
    names = [] if seen.record is None else list(map(str, seen.record.workers))
    names += [seen.worker] if seen.worker else []
    return format_html_join(", ", '<span class="delayq-whole">{}</span>', ((plain(name),) for name in names)) or "–"


def _secrets(call: Call) -> list[str]:
    return secret_texts(call.args, call.kwargs, _parameters(call.task))


def _parameters(path: Any) -> list[inspect.Parameter] | None:
    """Return a task's parameters; None also where the code cannot even be imported, which the checks report."""
    try:
        return registry.parameters_of(path)
    except Exception:
        return None
