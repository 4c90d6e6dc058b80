"""OpenTelemetry's traces: from an enqueueing, an edit or an order to what is executed. Imports it where TRACES is True.

Note [Parent]
By OpenTelemetry's conventions for messaging an execution is a span of the kind CONSUMER. What somebody has asked for
once, a job or a run now, is a child of the span in which that was done, so that a trace that begins with a request
shows what the request has caused. Its row carries the span. The due points of a schedule are no part of the request
that saved it, perhaps years ago: each begins a trace of its own.

Note [Nothing while idle]
A worker asks Redis several times a second whether something is due. Where a client of Redis or a database is
instrumented, each question would be a trace. So the worker's own threads are quiet: what they ask makes no spans. Only
executions are traced, and what tasks do in them.

Note [A tracer that fails]
The SDK lets through what a span processor raises. So each touch of the tracer is within TRACER: without a span the work
goes on. A processor that blocks delays one thread only. For an execution that is the slot's thread, before the call and
after the record; for an enqueueing it is the caller's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .. import conf
from .side_channels import Guard

#: What is carried: W3C's headers. Not `baggage`: nobody knows what a project puts there, and Redis would show it.
PARENT, STATE = "traceparent", "tracestate"
#: A longer `tracestate` is left out, as W3C allows from here on.
MOST_STATE = 512
SYSTEM = "django_delayq"
#: See Note [A tracer that fails].
TRACER = Guard("OpenTelemetry's tracer")


def is_on() -> bool:
    """Say whether DELAYQ["TRACES"] is True."""
    return conf.get_config().traces


def tracer() -> Any:
    """Return our tracer, of whatever provider the project has set."""
    from opentelemetry import trace

    return trace.get_tracer("django_delayq")


def carrier() -> dict[str, str]:
    """Return the span of this moment as W3C's headers, to be carried along; empty where there is none, or traces are
    off."""
    if not is_on():
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    with TRACER:
        TraceContextTextMapPropagator().inject(found)
    return {name: text for name, text in found.items() if name == PARENT or (name == STATE and len(text) <= MOST_STATE)}


def as_options() -> dict[str, Any] | None:
    """Return the span of this moment as options of a row that is made now; None where there is none."""
    carried = carrier()
    return {"trace": carried} if carried else None


def context_of(carried: Mapping[str, str]) -> Any:
    """Return the context that was carried; an empty one where there was none, or it cannot be read."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carried, Context())


def ids(span: Any = None) -> dict[str, str]:
    """Return the ids of a span, by default of this moment's, for lines of a log; empty where there is none."""
    if span is None:
        if not is_on():
            return {}
        from opentelemetry import trace

        span = trace.get_current_span()
    with TRACER:
        context = span.get_span_context()
        if context.is_valid:
            return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    return {}


@contextmanager
def within(span: Any) -> Iterator[None]:
    """Have this be the current span; where it is None, nothing changes."""
    if span is None:
        yield
        return
    from opentelemetry import context, trace

    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def quiet() -> Iterator[None]:
    """Make no spans of what is asked of Redis and the database meanwhile. See Note [Nothing while idle]."""
    if not is_on():
        yield
        return
    from opentelemetry import context

    key = context._SUPPRESS_INSTRUMENTATION_KEY  # by which instrumentations ask; the function that sets it is in none
    token = context.attach(context.set_value(key, True))  # of the packages that are needed
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def enqueueing() -> Iterator[Callable[[Sequence[Any]], None]]:
    """Make a span of an enqueueing; yields what is to be told of its results. Only where traces are on."""
    from opentelemetry.trace import INVALID_SPAN, SpanKind, Status, StatusCode

    attributes = {"messaging.system": SYSTEM, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    begun: Any = None
    with TRACER:
        begun = tracer().start_span("send", kind=SpanKind.PRODUCER, attributes=attributes)
    span = begun or INVALID_SPAN

    def tell(results: Sequence[Any]) -> None:
        with TRACER:
            _describe(span, results)

    try:
        with within(begun):
            yield tell
    except BaseException as error:
        with TRACER:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        raise
    finally:
        with TRACER:
            span.end()


def _describe(span: Any, results: Sequence[Any]) -> None:
    queues = {str(result.task.queue_name) for result in results}
    if len(queues) == 1:
        (queue,) = queues
        span.update_name(f"send {queue}")
        span.set_attribute("messaging.destination.name", queue)
    if len(results) == 1:
        span.set_attribute("messaging.message.id", str(results[0].id))
        span.set_attribute("delayq.task", results[0].task.module_path)
    else:
        span.set_attribute("messaging.batch.message_count", len(results))
