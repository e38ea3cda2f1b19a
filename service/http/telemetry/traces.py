"""OpenTelemetry spans of the stages, within FastAPI's of the request; imported if traces are on."""

import logging
import time
from collections.abc import Sequence
from multiprocessing.util import Finalize

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.telemetry.access import PROBES
from service.pipeline.served import ServedPipeline
from service.stages import Stage

_BATCH_SIZE = "ml_decoder.batch_size"


class Traces:
    """An `Observer` that makes a span of each stage of each photo; FastAPI takes `telemetry`."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("ml-decoder-serve")
        self.telemetry = TelemetryConfig(
            tracing=True,
            tracer_provider=provider,
            operation_spans=False,
            metrics=False,
            logs=False,
            auto_configure=False,
            exclude=lambda scope: (
                scope["type"] != "http" or scope["path"].removeprefix(scope["root_path"]) in PROBES
            ),
        )

    def watch(self, app: Starlette, served: ServedPipeline) -> None:
        """Adds the stages to the requests' spans of `app`."""
        served.observers.append(self)
        app.add_middleware(NameSpans)

    def on_batch(self, size: int, seconds: float) -> None:
        """Ignored: each photo reports its batch."""

    def on_prediction(self, stages: Sequence[Stage], batch_size: int) -> None:
        """Makes the spans of a photo, within the request's."""
        offset, attributes = time.time_ns() - time.perf_counter_ns(), {_BATCH_SIZE: batch_size}
        for stage in stages:
            start, end = (offset + round(t * 1e9) for t in (stage.started, stage.ended))
            self._tracer.start_span(stage.name, start_time=start, attributes=attributes).end(end)


class NameSpans:
    """ASGI middleware that names the request's span by its route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        span = trace.get_current_span()
        if scope["type"] != "http" or not span.get_span_context().is_valid:
            await self._app(scope, receive, send)
            return

        async def send_named(message: Message) -> None:
            # FastAPI's router does this for the requests that it sees; predictions bypass it.
            path = getattr(scope.get("route"), "path", None)
            if message["type"] == "http.response.start" and path is not None:
                span.update_name(f"{scope['method']} {path}")
                span.set_attribute("http.route", path)
            await send(message)

        await self._app(scope, receive, send_named)


def add_trace_id(record: logging.LogRecord) -> bool:
    """Adds the ids of the current trace and span to a log record; a filter that drops none."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        record.trace_id = f"{context.trace_id:032x}"
        record.span_id = f"{context.span_id:016x}"
    return True


def open_provider() -> TracerProvider:
    """Returns a provider that exports as configured by the standard `OTEL_*` variables."""
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "ml-decoder-serve"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    # A forked worker runs no exit handlers, such as the SDK's own.
    Finalize(None, provider.shutdown, exitpriority=0)
    for handler in logging.getLogger().handlers:
        handler.addFilter(add_trace_id)
    return provider
