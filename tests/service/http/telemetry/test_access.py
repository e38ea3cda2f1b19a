"""The outermost middleware: request ids, log lines, unexpected exceptions."""

import logging

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.app import create_app
from service.http.telemetry.access import Access, choose_request_id
from service.http.telemetry.metrics import Metrics
from service.logs import make_formatter
from service.pipeline.served import ServedPipeline
from service.settings import Settings
from tests.support.serving import assert_problem

LOGGER = "service.http.telemetry.access"


async def fail(scope: Scope, _receive: Receive, _send: Send) -> None:
    scope["app"] = create_app(ServedPipeline(Settings()))
    raise RuntimeError("secret")


async def fail_halfway(scope: Scope, _receive: Receive, send: Send) -> None:
    scope["app"] = create_app(ServedPipeline(Settings()))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("secret")


def make_access(app: ASGIApp) -> Access:
    return Access(app, Metrics(), ServedPipeline(Settings()))


def choose(offered: bytes) -> str:
    return choose_request_id({"headers": [(b"host", b"x"), (b"x-request-id", offered)]})


@pytest.mark.parametrize("valid", [b"a", b"A-Z.0_9:b", b"x" * 128])
def test_valid_request_id_is_kept(valid: bytes) -> None:
    assert choose(valid).encode() == valid


@pytest.mark.parametrize("invalid", [b"", b"x" * 129, b"a b", b'a"b', b"a\nb", b"\xe9", b"a/b"])
def test_invalid_or_missing_request_id_is_replaced_by_a_new_one(invalid: bytes) -> None:
    ids = [choose(invalid), choose(invalid), choose_request_id({"headers": []})]
    assert len({invalid.decode("latin-1"), *ids}) == 4
    assert choose(ids[0].encode()) == ids[0]


def test_unexpected_error_is_a_problem_without_its_text_and_a_logged_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = TestClient(make_access(fail)).get("/x")
    assert_problem(response, 500, "internal_error")
    assert "secret" not in response.text
    assert "secret" in caplog.text
    caplog.clear()
    response = TestClient(make_access(fail_halfway)).get("/x")
    assert (response.status_code, response.text) == (200, ""), "the answer had begun"
    assert "secret" in caplog.text


def test_path_is_cut_in_the_log_and_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.setFormatter(make_formatter("text"))
    TestClient(make_access(fail)).get("/x%0Arequest method=GET")
    (line,) = (line for line in caplog.text.splitlines() if f"INFO {LOGGER}" in line)
    assert 'request method=GET path="/x\\nrequest method=GET" status=500' in line
    caplog.clear()
    TestClient(make_access(fail)).get("/" + "x" * 5000)
    (record,) = [r for r in caplog.records if r.getMessage() == "request"]
    assert len(record.__dict__["path"]) == 200


def test_log_line_has_template_status_duration_and_problem(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    client.get("/labels/no-such-set?x=1", headers={"X-Request-Id": "find-me"})
    (record,) = [r for r in caplog.records if r.name == LOGGER]
    fields = record.__dict__
    assert (fields["method"], fields["path"]) == ("GET", "/labels/{name}")
    assert (fields["status"], fields["problem"]) == (422, "invalid_parameters")
    assert fields["duration_ms"] >= 0
