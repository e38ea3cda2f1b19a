"""The deployed proxy configuration in front of fake replicas: its own answers and its routing."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from service.errors import BodyTooLarge
from tests.support import nginx
from tests.support.fake_service import FakeService, run_fake
from tests.support.serving import assert_problem

COUNT = 3
TOO_LARGE = b"x" * (33 * 1024 * 1024)


@pytest.fixture
def replicas() -> Iterator[list[FakeService]]:
    with ExitStack() as stack:
        replicas = [stack.enter_context(run_fake())[0] for _ in range(COUNT)]
        set_status(replicas, 200)
        yield replicas


def set_status(replicas: list[FakeService], status: int) -> None:
    """Sets what the replicas answer; 0 closes the connection, as a killed process does."""
    for replica in replicas:
        replica.answers = [(status, {"X-Answered-By": "replica"})]


@contextmanager
def open_proxy(folder: Path, *ports: int) -> Iterator[httpx.Client]:
    with (
        nginx.Nginx(folder, nginx.deployed_site(ports)) as running,
        httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=60) as client,
    ):
        yield client


@pytest.fixture
def proxy(replicas: list[FakeService], tmp_path: Path) -> Iterator[httpx.Client]:
    with open_proxy(tmp_path, *(replica.port for replica in replicas)) as client:
        yield client


def predict(client: httpx.Client) -> httpx.Response:
    return client.post("/predict", content=b"photo")


def assert_answered_by_replica(response: httpx.Response, status: int = 200) -> None:
    assert (response.status_code, response.headers.get("x-answered-by")) == (status, "replica")


def test_proxy_refusal_is_a_problem(proxy: httpx.Client) -> None:
    too_large: dict[str, Any] = {"content": TOO_LARGE}
    for asked, options, status, code in [
        ("POST /labels", too_large, 413, "body_too_large"),
        ("POST /x.html", too_large, 413, "body_too_large"),
        ("GET /metrics", {}, 404, "not_found"),
        ("GET /tags/metrics", {}, 404, "not_found"),
        ("GET /a/tags/metrics?x=1", {}, 404, "not_found"),
        ("GET /metri%63s", {}, 404, "not_found"),
        ("GET /tags%2Fmetrics", {}, 404, "not_found"),
        ("GET /labels/../metrics", {}, 404, "not_found"),
        ("GET /.problem", {}, 404, "not_found"),
        ("TRACE /predict", {}, 405, "method_not_allowed"),
        ("GET /" + "x" * 20_000, {}, 414, "refused_by_proxy"),
        ("GET /", {"headers": {"X": "x" * 40_000}}, 400, "refused_by_proxy"),
    ]:
        assert_problem(proxy.request(*asked.split(), **options), status, code)
        assert_answered_by_replica(predict(proxy))


def test_path_that_only_looks_like_metrics_reaches_a_replica(proxy: httpx.Client) -> None:
    for path in ("/labels/metrics", "/tags/labels/metrics", "/v2/models/metrics", "/metrics/x"):
        assert_answered_by_replica(proxy.post(path))


def test_proxy_refuses_a_large_body_with_the_words_of_the_service(proxy: httpx.Client) -> None:
    sent = {"X-Request-ID": "mine"}
    refused = proxy.post("/predict", content=TOO_LARGE, headers=sent)
    problem = assert_problem(refused, 413, BodyTooLarge.code)
    assert (problem["title"], problem["request_id"]) == (BodyTooLarge.title, "mine")
    protocol = proxy.post("/v2/models/x/infer", content=TOO_LARGE)
    assert (protocol.status_code, protocol.headers["content-type"]) == (413, "application/json")
    assert protocol.json() == {"error": BodyTooLarge.title}
    assert_answered_by_replica(predict(proxy))


def test_invalid_request_id_does_not_break_the_problem(proxy: httpx.Client) -> None:
    refused = proxy.get("/metrics", headers={"X-Request-ID": 'a","status":"200'})
    assert len(assert_problem(refused, 404, "not_found")["request_id"]) == 32
    assert_answered_by_replica(predict(proxy))


@pytest.mark.parametrize("path", ["/predict", "/labels"])
def test_missing_replicas_are_a_problem_with_retry_after(path: str, tmp_path: Path) -> None:
    with open_proxy(tmp_path, *(nginx.find_free_port() for _ in range(COUNT))) as client:
        for _ in range(COUNT):
            gone = client.post(path, content=b"x")
            assert_problem(gone, 502, "no_replica")
            assert int(gone.headers["retry-after"]) > 0


def test_unreachable_replicas_are_a_problem(tmp_path: Path) -> None:
    with ExitStack() as stack:
        # A backlog of 0 that is full.
        hung = [stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))]
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(hung[0].getsockname())
        client = stack.enter_context(open_proxy(tmp_path, hung[0].getsockname()[1]))
        assert_problem(predict(client), 504, "replica_timeout")


def test_replicas_that_answer_503_still_get_requests(
    proxy: httpx.Client, replicas: list[FakeService]
) -> None:
    set_status(replicas, 503)
    for _ in range(2 * COUNT):
        assert_answered_by_replica(predict(proxy), 503)
    set_status(replicas, 200)
    # nginx still has them marked as down.
    assert_answered_by_replica(predict(proxy))


def test_replicas_get_no_forwarded_headers_of_the_client(
    proxy: httpx.Client, replicas: list[FakeService]
) -> None:
    sent = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Prefix": "/evil", "X-Request-ID": "mine"}
    assert_answered_by_replica(proxy.post("/predict", content=b"photo", headers=sent))
    ((_, _, headers),) = [request for replica in replicas for request in replica.requests]
    assert (headers["X-Forwarded-For"], headers["X-Request-ID"]) == ("127.0.0.1", "mine")
    assert "X-Forwarded-Prefix" not in headers


def test_request_that_breaks_replicas_reaches_at_most_two(
    proxy: httpx.Client, replicas: list[FakeService]
) -> None:
    set_status(replicas, 0)
    assert_problem(predict(proxy), 502, "no_replica")
    assert sum(len(replica.requests) for replica in replicas) == 2
    set_status(replicas, 200)
    assert_answered_by_replica(predict(proxy))
