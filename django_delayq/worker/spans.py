"""Creates a span for each execution if traces are on. See `tracing.py`."""

from collections.abc import Callable
from typing import Any

from ..calls import tracing
from ..calls.side_channels import Guard
from ..text import format_iso
from .held import Lease

PROCESS = "process"
#: See `tracing.py`, Note [Work continues without a tracer]. No `TaskTimeout` can arrive here: no task is being called.
TRACER = Guard("OpenTelemetry's tracer", BaseException)


def execute(held: Lease, call: Callable[[Lease], bool]) -> bool:
    """Execute an entry in a span, the parent of all spans that the task creates. `finish` ends it."""
    with TRACER:
        held.span = _begin(held)
    with tracing.use_span(held.span):
        return call(held)


def _begin(held: Lease) -> Any:
    from opentelemetry import trace

    run, labels = held.outcome.run, held.labels
    carried = (run.options or {}).get("trace")  # see `tracing.py`, Note [Each due point begins a trace]
    with tracing.quiet():
        context = tracing.read_context(carried if isinstance(carried, dict) else {})
    creator = trace.get_current_span(context).get_span_context()
    attributes = {
        "messaging.system": tracing.SYSTEM,
        "messaging.operation.name": PROCESS,
        "messaging.operation.type": PROCESS,
        "messaging.destination.name": held.shard.queue,
        "messaging.message.id": labels.get("run", labels.get("job", "")),
        "code.function.name": labels["task"],
        **{f"delayq.{name}": labels[name] for name in ("task", "schedule") if name in labels},
        "delayq.due": format_iso(run.due_at),
    }
    return tracing.get_tracer().start_span(
        f"{PROCESS} {held.shard.queue}",
        context=context,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[trace.Link(creator)] if creator.is_valid else [],
    )


def finish(held: Lease) -> None:
    """End the span of an execution, with its outcome. Does nothing if there is no span."""
    span, held.span = held.span, None
    if span is not None:
        with TRACER:
            _finish(span, held)


def _finish(span: Any, held: Lease) -> None:
    from opentelemetry.trace import StatusCode

    failure, run = held.failure, held.outcome.run
    span.set_attribute("delayq.attempt", run.attempt)
    if run.latency is not None and run.attempt <= 1:  # a retry's wait means nothing
        span.set_attribute("delayq.latency", run.latency.total_seconds())
    if failure is not None:  # its texts contain no secrets, unlike those that OpenTelemetry would format
        span.set_attribute("error.type", failure.path)
        values = {"type": failure.path, "message": failure.title, "stacktrace": failure.text}
        span.add_event("exception", {f"exception.{name}": value for name, value in values.items()})
        span.set_status(StatusCode.ERROR, failure.title)
    span.end()
