"""The log of a real process, and its traces at the collector of the standard `OTEL_*` variables."""

import json

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.fake_service import run_fake
from tests.support.serving import assert_still_serving, send_image

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_every_line_is_a_json_object_and_errors_carry_the_request_id(tiny_bundle: Bundle) -> None:
    command = serve_command(tiny_bundle)
    with ServerProcess(*command, ML_DECODER_LOG_FORMAT="json") as server:
        server.wait_for_line(r'"message": "ready"')
        listening = json.loads(server.wait_for_line(r'.*"message": "listening".*\n').group())
        with server.connect(listening["address"], listening["port"]) as client:
            headers = {"X-Request-Id": "find-me"}
            answer = send_image(client, b"junk", headers=headers)
            assert answer.headers["x-request-id"] == "find-me"
            assert_still_serving(client)
        line = json.loads(server.wait_for_line(r'.*"request_id": "find-me".*\n').group())
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.stderr.splitlines()]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/predict", 400)
    assert line["problem"] == "invalid_image"
    assert line["duration_ms"] > 0
    assert [entry["message"] for entry in lines if entry["logger"] == "service.process.server"]
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in lines)


def test_last_spans_are_exported_to_the_collector_of_the_standard_variables(
    tiny_bundle: Bundle,
) -> None:
    command = serve_command(tiny_bundle, "--traces", "otlp", "--workers", "2")
    with run_fake() as (collector, url):
        collector.body = b""
        with ServerProcess(
            *command,
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_EXPORTER_OTLP_COMPRESSION="none",
            OTEL_BSP_SCHEDULE_DELAY="600000",
        ) as server:
            server.wait_for_line("serving url=")
            headers = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
            with server.open_client() as client:
                assert send_image(client, headers=headers).status_code == 200
            server.wait_for_line(rf"request method=POST .*trace_id={TRACE_ID}")
            assert server.stop() == 0
        exported = ExportTraceServiceRequest()
        exported.ParseFromString(collector.bodies.get(timeout=60))
        assert {request[:2] for request in collector.requests} == {("POST", "/v1/traces")}
    (resource,) = exported.resource_spans
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert "decode" in {span.name for span in spans}
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
