"""Tests of a replica of Ray Serve, without Ray."""

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from service.bundle.reader import Bundle
from service.errors import BundleError
from service.http.telemetry import metrics as metrics_module
from service.http.telemetry.metrics import Metrics
from service.pipeline.served import ServedPipeline
from tests.support.photos import make_photo

pytestmark = pytest.mark.anyio


# The parts of Ray that `service/ray_app.py` uses; any other fails.
FAKE_RAY = SimpleNamespace(
    serve=SimpleNamespace(
        ingress=lambda _build: lambda replica: replica,
        deployment=lambda _replica, name: SimpleNamespace(bind=lambda: name),
    )
)


@pytest.fixture
def build_app(
    monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle
) -> Iterator[Callable[[], FastAPI]]:
    monkeypatch.setitem(sys.modules, "ray", FAKE_RAY)
    monkeypatch.delitem(sys.modules, "service.ray_app", raising=False)
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(tiny_bundle.path))
    monkeypatch.setenv("ML_DECODER_LABEL_STORE", "memory")
    monkeypatch.setenv("ML_DECODER_DEVICE", "cpu")
    yield importlib.import_module("service.ray_app").build_app
    sys.modules.pop("service.ray_app", None)


async def test_replica_starts_when_its_model_is_open_and_samples_its_gauges(
    build_app: Callable[[], FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "SAMPLE_SECONDS", 0)
    app = build_app()
    metrics, sampled = app.state.metrics, asyncio.Event()

    def sample(served: ServedPipeline) -> None:
        Metrics.sample(metrics, served)
        if served.ready:
            sampled.set()

    monkeypatch.setattr(metrics, "sample", sample)
    async with asyncio.timeout(10), app.router.lifespan_context(app):
        assert app.state.served.ready
        await sampled.wait()
        assert metrics.registry.get_sample_value("ml_decoder_ready") == 1
    assert not app.state.served.ready


async def test_answer_leaves_the_request_id_to_rays_proxy(build_app: Callable[[], FastAPI]) -> None:
    app, sent = build_app(), {"X-Request-ID": "mine"}
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ray") as client:
            for photo, status in ((make_photo(), 200), (b"junk", 400)):
                answer = await client.post("/predict", files={"image": photo}, headers=sent)
                assert (answer.status_code, answer.json()["request_id"]) == (status, "mine")
                assert "x-request-id" not in answer.headers


async def test_replica_does_not_start_if_its_model_cannot_be_opened(
    build_app: Callable[[], FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DECODER_BUNDLE", "nowhere")
    app = build_app()
    with pytest.raises(BundleError):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")
