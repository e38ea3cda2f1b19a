"""Traces: one span for each request and one for each of its stages, by OpenTelemetry.

In: a provider; the stages that the pipeline tells of. Out: the spans `decode`, `queue`, `encode`,
`head` and `respond` within the request's own, which FastAPI makes, with the trace of the client's
`traceparent` continued, and told to the client in `traceresponse` (W3C Trace Context). Imported
only where traces are on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.host import PipelineHost
from service.scheduling.stages import Stage

TRACE_RESPONSE_HEADER = "traceresponse"

# Probes and scrapes come every few seconds and tell nothing.
_UNTRACED = frozenset({"/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})
_BATCH_SIZE = "ml_decoder.batch_size"


@dataclass
class _Request:
    """What is known of the request that is being traced.

    Attributes:
        inferred: when the engine was done with its last photo, seconds of `time.perf_counter`.
    """

    inferred: float | None = None


_request: ContextVar[_Request | None] = ContextVar("traced_request", default=None)


class StageSpans:
    """A `Watcher` that makes a span of each stage of each photo."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        """Sends spans to `provider`."""
        self._tracer = provider.get_tracer("ml-decoder-serve")

    def saw_batch(self, size: int, seconds: float) -> None:
        """Does nothing: every photo tells of its batch."""

    def saw_prediction(self, stages: Sequence[Stage], batch_size: int) -> None:
        """Makes the spans of a photo, within the request's."""
        for stage in stages:
            self.add(stage.name, stage.started, stage.ended, {_BATCH_SIZE: batch_size})
        request = _request.get()
        if request is not None:
            request.inferred = stages[-1].ended

    def add(
        self, name: str, started: float, ended: float, attributes: dict[str, int] | None = None
    ) -> None:
        """Makes one span; both times are seconds of `time.perf_counter`."""
        offset = time.time_ns() - time.perf_counter_ns()
        span = self._tracer.start_span(
            name, start_time=offset + round(started * 1e9), attributes=attributes
        )
        span.end(offset + round(ended * 1e9))


class TraceAnswers:
    """ASGI middleware within the request's span: the header, and the span `respond`."""

    def __init__(self, app: ASGIApp, spans: StageSpans) -> None:
        """Wraps `app`."""
        self._app = app
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; what is not traced passes through untouched."""
        span = trace.get_current_span()
        context = span.get_span_context()
        if scope["type"] != "http" or not context.is_valid:
            await self._app(scope, receive, send)
            return
        request = _Request()

        async def send_traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[TRACE_RESPONSE_HEADER] = _write_context(context)
                _name_span(span, scope)
            await send(message)
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            if is_last and request.inferred is not None:
                self._spans.add("respond", request.inferred, time.perf_counter())

        token = _request.set(request)
        try:
            await self._app(scope, receive, send_traced)
        finally:
            _request.reset(token)


class Traces:
    """What makes an app trace its requests.

    Attributes:
        telemetry: makes FastAPI trace requests; metrics and logs are our own.
    """

    def __init__(self, provider: trace.TracerProvider) -> None:
        """Sends spans to `provider`."""
        self._spans = StageSpans(provider)
        self.telemetry = TelemetryConfig(
            tracing=True,
            tracer_provider=provider,
            operation_spans=False,
            metrics=False,
            logs=False,
            auto_configure=False,
            exclude=_is_untraced,
        )

    def watch(self, app: Starlette, host: PipelineHost) -> None:
        """Adds the stages to the traces of an app that was made with `telemetry`."""
        host.watchers.append(self._spans)
        app.add_middleware(TraceAnswers, spans=self._spans)


class TraceIdFilter(logging.Filter):
    """Adds the trace and the span that a log record belongs to, where there is one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass."""
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            record.trace_id = f"{context.trace_id:032x}"
            record.span_id = f"{context.span_id:016x}"
        return True


def open_provider() -> TracerProvider:
    """Returns a provider that exports as the standard `OTEL_*` variables say."""
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "ml-decoder-serve"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    for handler in logging.getLogger().handlers:
        handler.addFilter(TraceIdFilter())
    return provider


def _is_untraced(scope: MutableMapping[str, Any]) -> bool:
    return scope["type"] != "http" or scope["path"] in _UNTRACED


def _name_span(span: trace.Span, scope: Scope) -> None:
    # FastAPI's router names the spans of the requests that it sees; predictions go by it.
    path = getattr(scope.get("route"), "path", None)
    if path is not None:
        span.update_name(f"{scope['method']} {path}")
        span.set_attribute("http.route", path)


def _write_context(context: trace.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
