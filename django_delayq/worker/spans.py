"""Creates a span for each execution if traces are on. See `tracing.py`."""

from collections.abc import Callable
from typing import Any

from ..calls import tracing
from ..calls.side_channels import Guard
from ..text import iso
from .held import Held

PROCESS = "process"
#: See `tracing.py`, Note [A tracer that fails]. No `TaskTimeout` can arrive here: no task is being called.
TRACER = Guard("OpenTelemetry's tracer", BaseException)


def execute(held: Held, call: Callable[[Held], bool]) -> bool:
    """Execute an entry in a span, the parent of all spans that the task creates. `finish` ends it."""
    with TRACER:
        held.span = _begin(held)
    with tracing.within(held.span):
        return call(held)


def _begin(held: Held) -> Any:
    from opentelemetry import trace

    with tracing.quiet():
        context = tracing.context_of(held.carried())
    asked = trace.get_current_span(context).get_span_context()
    return tracing.tracer().start_span(
        f"{PROCESS} {held.shard.queue}",
        context=context,
        kind=trace.SpanKind.CONSUMER,
        attributes=_attributes(held),
        links=[trace.Link(asked)] if asked.is_valid else [],
    )


def finish(held: Held) -> None:
    """End the span of an execution, with its outcome. Does nothing if there is no span."""
    span, held.span = held.span, None
    if span is not None:
        with TRACER:
            _finish(span, held)


def _finish(span: Any, held: Held) -> None:
    from opentelemetry.trace import StatusCode

    failure = held.failure
    _, lag = held.waited
    span.set_attribute("delayq.attempt", held.labels["attempt"])
    if lag is not None:
        span.set_attribute("delayq.lag", lag)
    if failure is not None:  # its texts contain no secrets, unlike those that OpenTelemetry would format
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
    """Return the attributes known before the execution, by OpenTelemetry's conventions; `delayq.*` are our own."""
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
