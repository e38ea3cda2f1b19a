"""Traces of a real process arrive at the collector of the standard `OTEL_*` variables."""

from __future__ import annotations

import queue
import signal
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.support.photos import make_photo

TIMEOUT_SECONDS = 60.0
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


class Collector(HTTPServer):
    """Receives spans on a port of its own."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: queue.Queue[bytes] = queue.Queue()


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        self.server.bodies.put(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Logs nothing."""


def test_spans_are_exported_to_the_collector_of_the_standard_variables(
    tiny_bundle: Bundle,
) -> None:
    command = ("serve", "--bundle", str(tiny_bundle.path), "--port", "0", "--device", "cpu")
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            with ServerProcess(
                *(*command, "--traces", "otlp", "--log-format", "text"),
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_port}",
                OTEL_EXPORTER_OTLP_COMPRESSION="none",
                OTEL_BSP_SCHEDULE_DELAY="100",
            ) as server:
                headers = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
                with server.open_client() as client:
                    answer = client.post("/predict", files={"image": make_photo()}, headers=headers)
                    assert answer.status_code == 200
                exported = ExportTraceServiceRequest()
                exported.ParseFromString(collector.bodies.get(timeout=TIMEOUT_SECONDS))
                server.wait_for_line(rf"request method=POST .*trace_id={TRACE_ID}")
                server.send_signal(signal.SIGTERM)
                assert server.wait() == 0
        finally:
            collector.shutdown()
            thread.join()
    (resource,) = exported.resource_spans
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert "decode" in {span.name for span in spans}
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
