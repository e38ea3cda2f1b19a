"""Traces: the spans of a request, the client's trace continued, no import if off."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter as Exporter

from service.bundle.reader import Bundle
from service.errors import StartError
from service.http.app import create_app
from service.http.telemetry.traces import add_trace_id, open_provider
from service.pipeline.served import ServedPipeline
from service.settings import Settings
from tests.support.photos import make_photo
from tests.support.serving import send_image, send_images, serve_app

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
ROOT_PATH = "/tags"
STAGES = ["decode", "queue", "encode", "head"]
SPANS = Exporter()


@pytest.fixture
def exporter() -> Exporter:
    SPANS.clear()
    return SPANS


@pytest.fixture(scope="module")
def client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(SPANS))
    with serve_app(tiny_bundle.path, tracer_provider=provider, root_path=ROOT_PATH) as client:
        yield client


def split(exporter: Exporter) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """Returns the only request's span, and its stages by start."""
    spans = exporter.get_finished_spans()
    (request,) = [span for span in spans if span.kind.name == "SERVER"]
    stages = [span for span in spans if span is not request]
    return request, sorted(stages, key=lambda span: (span.start_time or 0, span.end_time or 0))


def test_request_has_a_span_with_one_child_for_each_stage_in_order(
    client: TestClient, exporter: Exporter
) -> None:
    send_image(client)
    request, stages = split(exporter)
    assert request.name == "POST /predict"
    assert request.attributes["http.route"] == "/predict"
    assert request.attributes["http.response.status_code"] == 200
    assert [span.name for span in stages] == STAGES
    for span in stages:
        assert span.parent.span_id == request.context.span_id
        assert (request.start_time or 0) <= span.start_time <= span.end_time
        assert span.attributes == {"ml_decoder.batch_size": 1}


def test_each_photo_of_a_batch_has_its_stages(client: TestClient, exporter: Exporter) -> None:
    send_images(client, [make_photo(seed) for seed in range(3)])
    _, stages = split(exporter)
    names = [span.name for span in stages]
    assert [names.count(name) for name in STAGES] == [3] * 4


def test_trace_of_the_client_is_continued(client: TestClient, exporter: Exporter) -> None:
    answer = send_image(client, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"})
    request, stages = split(exporter)
    assert {f"{span.context.trace_id:032x}" for span in (request, *stages)} == {TRACE_ID}
    assert f"{request.parent.span_id:016x}" == PARENT_ID
    assert "traceresponse" not in answer.headers


@pytest.mark.parametrize("prefix", ["", ROOT_PATH])
def test_probes_are_not_traced(client: TestClient, exporter: Exporter, prefix: str) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert client.get(prefix + path).status_code == 200
    assert exporter.get_finished_spans() == ()


def test_log_lines_carry_the_trace(
    client: TestClient, exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.http.telemetry.access")
    with caplog.filtering(add_trace_id):
        send_image(client)
    request, _ = split(exporter)
    (record,) = (record for record in caplog.records if record.getMessage() == "request")
    assert record.__dict__["trace_id"] == f"{request.context.trace_id:032x}"


def test_service_name_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    default = open_provider()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "tagger")
    given = open_provider()
    assert default.resource.attributes["service.name"] == "ml-decoder-serve"
    assert given.resource.attributes["service.name"] == "tagger"
    for provider in (default, given):
        provider.shutdown()


def test_opentelemetry_sdk_is_not_imported_if_traces_are_off() -> None:
    code = """
import sys
from service.http.app import create_app
from service.pipeline.served import ServedPipeline
from service.settings import Settings
create_app(ServedPipeline(Settings()))
print([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exp"))])
"""
    command = [sys.executable, "-c", code]
    modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert modules.strip() == "[]"


def test_traces_without_opentelemetry_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "service.http.telemetry.traces", None)
    with pytest.raises(StartError, match="otel"):
        create_app(ServedPipeline(Settings(traces="otlp")))
