"""OpenTelemetry's traces, from the request of a job or a run now to its execution. Imports it only if TRACES is True.

Note [Each due point begins a trace]
The span of a job or a run now is a child of the span that requested it, which the row carries. Each due point of a
schedule begins a trace of its own: the request that saved the schedule may be years old.

Note [A worker's own queries have no spans]
With an instrumented client, each query of a worker would be a trace. So its own threads suppress instrumentation.

Note [Work continues without a tracer]
The SDK lets exceptions of span processors through. So every call is within TRACER: work continues without a span.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from .. import conf
from .side_channels import Guard

#: Maximum characters of `tracestate`: W3C allows dropping a longer one.
MOST_STATE = 512
SYSTEM = "django_delayq"
#: See Note [Work continues without a tracer].
TRACER = Guard("OpenTelemetry's tracer")


def is_on() -> bool:
    return conf.get_config().traces


def get_tracer() -> Any:
    from opentelemetry import trace

    return trace.get_tracer("django_delayq")


def build_carrier() -> dict[str, str]:
    """Return the current span as W3C headers, without baggage; empty if there is none, or traces are off."""
    if not is_on():
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    with TRACER:
        TraceContextTextMapPropagator().inject(found)
    if len(found.get("tracestate", "")) > MOST_STATE:
        del found["tracestate"]
    return found


def build_options() -> dict[str, Any] | None:
    carried = build_carrier()
    return {"trace": carried} if carried else None


def read_context(carried: Mapping[str, str]) -> Any:
    """Return the carried context; an empty one if there was none, or it cannot be read."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carried, Context())


def get_ids(span: Any = None) -> dict[str, str]:
    """Return the ids of a span (default: the current one) for log lines; empty if there is none."""
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


def use_span(span: Any) -> AbstractContextManager[Any]:
    if span is None:
        return nullcontext()
    from opentelemetry import trace

    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress spans of Redis and database queries. See Note [A worker's own queries have no spans]."""
    if not is_on():
        yield
        return
    from opentelemetry import context

    key = context._SUPPRESS_INSTRUMENTATION_KEY  # read by instrumentations; the function that sets it
    token = context.attach(context.set_value(key, True))  # is in a package that we do not require
    try:
        yield
    finally:
        context.detach(token)


def trace_enqueueing(enqueue: Callable[[], list[Any]]) -> list[Any]:
    """Call a function that enqueues jobs and returns their results, in a span. Only if traces are on."""
    from opentelemetry.trace import INVALID_SPAN, SpanKind, Status, StatusCode

    attributes = {"messaging.system": SYSTEM, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    span = None
    with TRACER:
        span = get_tracer().start_span("send", kind=SpanKind.PRODUCER, attributes=attributes)
    context = use_span(span)
    span = span or INVALID_SPAN
    try:
        with context:
            results = enqueue()
        with TRACER:
            _describe(span, results)
        return results
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
