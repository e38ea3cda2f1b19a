"""Predictions are refused at the connection while the queue is full, and nothing else is."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from service import logs
from service.bundle.reader import Bundle
from service.http.dialects.table import choose_dialects
from service.http.responses.problems import render_problem
from service.http.telemetry.metrics import Metrics
from service.pipeline.served import ServedPipeline
from service.process import shedding
from service.process.protocol.connection import SURPLUS
from service.process.shedding import Shedder
from service.scheduling.queue import BatchQueue
from service.settings import Settings

pytestmark = pytest.mark.anyio

PATHS = ("/predict", "/predict/batch")
RENDERERS = {"": render_problem} | {each.prefix: each.render for each in choose_dialects("all")}


@pytest.fixture
async def served(tiny_bundle: Bundle) -> AsyncIterator[ServedPipeline]:
    served = ServedPipeline(Settings(bundle=tiny_bundle.path, device="cpu"))
    await served.open()
    yield served
    await served.drain()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def shedder(served: ServedPipeline, metrics: Metrics) -> Shedder:
    return Shedder(served, metrics, PATHS, RENDERERS)


def read_count(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"ml_decoder_{name}", labels)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchQueue, "is_full", True)


def make_scope(path: str = "/predict", method: str = "POST", **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "path": path, "method": method, "headers": pairs}


@pytest.mark.parametrize("path", [*PATHS, "/tags/predict"])
async def test_prediction_is_refused_with_its_request_id_and_counted_by_its_route(
    served: ServedPipeline, metrics: Metrics, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    served.settings = served.settings.model_copy(update={"root_path": "/tags"})
    shedder = Shedder(served, metrics, PATHS, RENDERERS)
    assert shedder.refuse(make_scope(path)) is None  # there is room
    monkeypatch.setattr(BatchQueue, "is_full", True)
    for _ in range(3):
        refusal = shedder.refuse(make_scope(path, x_request_id="abc"))
    assert refusal is not None
    headers = dict(refusal.headers)
    assert (refusal.status, headers[b"content-type"]) == (429, b"application/problem+json")
    assert headers[b"x-request-id"] == b"abc"
    assert int(headers[b"retry-after"]) >= 1
    problem = json.loads(refusal.body)
    assert (problem["code"], problem["request_id"]) == ("queue_full", "abc")
    route = {"method": "POST", "path": path.removeprefix("/tags"), "status": "429"}
    assert read_count(metrics, "request_seconds_count", **route) == 3
    assert read_count(metrics, "rejected_total", reason="queue_full") == 3
    for other in ("/tags/tags/predict", "/tags", "/other/predict"):
        assert shedder.refuse(make_scope(other)) is None


async def test_refused_connection_gets_the_shape_of_its_path(
    served: ServedPipeline, metrics: Metrics
) -> None:
    served.settings = served.settings.model_copy(update={"root_path": "/tags"})
    shapes = {
        "/info": b'{"type":',
        "/tags/v1/models": b'{"error":{"message":',
        "/v2": b'{"error":"',
    }
    for path, start in shapes.items():
        refusal = Shedder(served, metrics, PATHS, RENDERERS).refuse(
            make_scope(path) | {SURPLUS: True}
        )
        assert refusal is not None
        assert refusal.body.startswith(start)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    "scope",
    [
        make_scope("/labels"),
        make_scope("/predict/"),
        make_scope(method="GET"),
        make_scope(method="OPTIONS"),
        make_scope(origin="https://a.example"),
    ],
    ids=["another route", "no route", "read", "preflight", "a page"],
)
async def test_other_request_passes(shedder: Shedder, scope: dict[str, Any]) -> None:
    assert shedder.refuse(scope) is None


@pytest.mark.usefixtures("full")
async def test_request_passes_when_the_service_drains(
    shedder: Shedder, served: ServedPipeline
) -> None:
    await served.drain()
    assert shedder.refuse(make_scope()) is None


@pytest.mark.usefixtures("full")
async def test_refusals_are_logged_once_a_second_for_each_route(
    shedder: Shedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[str, int]] = []
    monkeypatch.setattr(
        shedding.logger, "warning", lambda _, extra: lines.append((extra["path"], extra["count"]))
    )
    monkeypatch.setattr(logs, "LOG_SECONDS", 0)
    for path in ("/predict", "/predict/batch", "/predict"):
        shedder.refuse(make_scope(path))
    await asyncio.sleep(0.01)
    assert lines == [("/predict", 2), ("/predict/batch", 1)]
    shedder.refuse(make_scope())
    await asyncio.sleep(0.01)
    assert lines[2:] == [("/predict", 1)]
