"""A span for each execution, where traces are on. See `tracing.py`."""

from typing import Any

from .. import tracing
from ..kinds import Held
from ..plain import iso

PROCESS = "process"


def execute(held: Held) -> bool:
    """Do `Kind.execute` in a span: the parent of all that the task does there."""
    from opentelemetry import trace

    with tracing.quiet():
        carried, belongs = held.carried()
    context: Any = tracing.context_of(carried)
    asked = trace.get_current_span(context).get_span_context()
    with tracing.tracer().start_as_current_span(
        f"{PROCESS} {held.shard.queue}",
        context=context if belongs else tracing.context_of({}),  # see `tracing.py`, Note [Parent or link]
        kind=trace.SpanKind.CONSUMER,
        attributes=_attributes(held),
        links=[trace.Link(asked)] if asked.is_valid else [],
        record_exception=False,
        set_status_on_exception=False,
        end_on_exit=False,
    ) as span:
        held.span = span
        ended = held.kind.execute(held)
    if ended:
        finish(held)
    return ended


def finish(held: Held) -> None:
    """End the span of an execution: what became of it is filled in by now. Nothing where it has none."""
    span, failure = held.span, held.failure
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    held.span = None
    _, lag = held.waited
    span.set_attribute("delayq.attempt", held.labels["attempt"])
    if lag is not None:
        span.set_attribute("delayq.lag", lag)
    if failure is not None:  # its texts are without secrets, which those that OpenTelemetry would make are not
        span.set_attribute("error.type", failure.path)
        said = {
            "exception.type": failure.path,
            "exception.message": failure.title,
            "exception.stacktrace": failure.text,
        }
        span.add_event("exception", said)
        span.set_status(StatusCode.ERROR, failure.title)
    span.end()


def _attributes(held: Held) -> dict[str, Any]:
    """Return what is known before the execution, by OpenTelemetry's conventions for messaging; `delayq.*` is ours."""
    labels, (due, _) = held.labels, held.waited
    return {
        "messaging.system": tracing.SYSTEM,
        "messaging.operation.name": PROCESS,
        "messaging.operation.type": PROCESS,
        "messaging.destination.name": held.shard.queue,
        "messaging.message.id": labels.get("run", labels.get("job", "")),
        "code.function.name": labels["task"],
        **{f"delayq.{name}": labels[name] for name in ("task", "schedule") if name in labels},
        **({} if due is None else {"delayq.due": iso(due)}),
    }
