"""A fake of the service: a real HTTP server with answers that a test sets."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER: dict[str, Any] = {
    "model": {"name": "m", "version": "1"},
    "label_set": {"name": "trained", "version": "1"},
    "label_sets": [{"name": "trained", "version": "1"}],
    "image": {"width": 2, "height": 1},
    "labels": [],
    "timings": {"decode_ms": 1, "queue_ms": 1, "inference_ms": 1, "total_ms": 3},
    "request_id": "1",
    "something_new": True,
}


class FakeService:
    """Answers with the next of `answers` (status, headers), then with the last one again.

    Status 0 closes the connection without an answer.
    """

    port = 0

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = [(200, {})]
        self.body: bytes = json.dumps(ANSWER).encode()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies = queue.SimpleQueue[bytes]()
        self.connections: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def set_answer(self, body: Any, status: int = 200) -> None:
        """Answers all requests with this JSON from now on."""
        self.answers, self.body = [(status, {})], json.dumps(body).encode()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.bodies.put(handler.rfile.read(int(handler.headers.get("content-length", 0))))
        with self._lock:
            self.requests.append((handler.command, handler.path, dict(handler.headers)))
            self.connections.add(handler.client_address)
            status, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            body = self.body  # a test may set the next one after it has read the headers
        if status == 0:
            handler.close_connection = True
            return
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def run_fake() -> Iterator[tuple[FakeService, str]]:
    """Yields the fake and its address."""
    service = FakeService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return lambda: service.answer(self)
            raise AttributeError(name)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # 0.02 s is the longest that stopping takes.
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    service.port = server.server_port
    yield service, f"http://127.0.0.1:{service.port}"
    server.shutdown()
    server.server_close()
    thread.join()
