"""The outermost middleware: request ids, log lines, unexpected exceptions."""

from __future__ import annotations

import logging

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.host import PipelineHost
from service.http.telemetry.access import Access, choose_request_id
from service.http.telemetry.logs import make_formatter
from service.http.telemetry.metrics import Metrics
from service.settings import Settings
from tests.support.serving import assert_problem


async def fail(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RuntimeError("secret")


async def fail_halfway(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("secret")


def make_access(app: ASGIApp) -> Access:
    return Access(app, Metrics(), PipelineHost(Settings()))


@pytest.mark.parametrize("valid", ["a", "A-Z.0_9:b", "x" * 128])
def test_valid_request_id_is_kept(valid: str) -> None:
    assert choose_request_id(valid) == valid


@pytest.mark.parametrize("invalid", [None, "", "x" * 129, "a b", 'a"b', "a\nb", "é", "a/b", "a\n"])
def test_invalid_request_id_is_replaced_by_a_new_one(invalid: str | None) -> None:
    first, second = choose_request_id(invalid), choose_request_id(invalid)
    assert first not in (invalid, second)
    assert choose_request_id(first) == first


def test_unexpected_error_is_a_problem_without_its_text_and_a_logged_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = TestClient(make_access(fail)).get("/x")
    assert_problem(response, 500, "internal_error")
    assert "secret" not in response.text
    assert "secret" in caplog.text


def test_error_in_the_middle_of_an_answer_is_logged_and_sends_nothing_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = TestClient(make_access(fail_halfway)).get("/x")
    assert (response.status_code, response.text) == (200, "")
    assert "secret" in caplog.text


def test_path_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.setFormatter(make_formatter("text"))
    TestClient(make_access(fail)).get("/x%0Arequest method=GET")
    (line,) = [
        line for line in caplog.text.splitlines() if "INFO service.http.telemetry.access" in line
    ]
    assert 'request method=GET path="/x\\nrequest method=GET" status=500' in line


def test_log_line_has_template_status_duration_and_problem(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.http.telemetry.access")
    client.get("/labels/no-such-set?x=1", headers={"X-Request-Id": "find-me"})
    (record,) = [r for r in caplog.records if r.name == "service.http.telemetry.access"]
    fields = {n: getattr(record, n) for n in ("method", "path", "status", "problem")}
    assert fields == {
        "method": "GET",
        "path": "/labels/{name}",
        "status": 404,
        "problem": "label_set_not_found",
    }
    assert getattr(record, "duration_ms") >= 0  # noqa: B009 - mypy knows no extra fields


def test_long_path_is_cut_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    TestClient(make_access(fail)).get("/" + "x" * 5000)
    (record,) = [r for r in caplog.records if r.getMessage() == "request"]
    assert len(getattr(record, "path")) == 200  # noqa: B009
