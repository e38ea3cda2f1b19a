"""Tests of a replica of Ray Serve, without Ray."""

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.bundle.reader import Bundle
from service.errors import BundleError
from service.http.telemetry import metrics as metrics_module
from service.http.telemetry.metrics import Metrics
from service.pipeline.host import PipelineHost
from tests.support.photos import make_photo

pytestmark = pytest.mark.anyio


class FakeProxy:
    """Gives each request an id and adds it to the answer, as Ray's proxy does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = MutableHeaders(scope=scope)
        request_id = given.setdefault("x-request-id", "rays")

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("X-Request-ID", request_id)
            await send(message)

        await self._app(scope, receive, send_with_id)


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

    def sample(host: PipelineHost) -> None:
        Metrics.sample(metrics, host)
        if host.ready:
            sampled.set()

    monkeypatch.setattr(metrics, "sample", sample)
    async with asyncio.timeout(10), app.router.lifespan_context(app):
        assert app.state.host.ready
        await sampled.wait()
        assert metrics.registry.get_sample_value("ml_decoder_ready") == 1
    assert not app.state.host.ready


@pytest.mark.parametrize(("sent", "answered"), [({}, "rays"), ({"X-Request-ID": "mine"}, "mine")])
async def test_answer_has_one_request_id_behind_rays_proxy(
    build_app: Callable[[], FastAPI], sent: dict[str, str], answered: str
) -> None:
    app = build_app()
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(FakeProxy(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://ray") as client:
            good = await client.post("/predict", files={"image": make_photo()}, headers=sent)
            bad = await client.post("/predict", files={"image": b"junk"}, headers=sent)
    assert (good.status_code, bad.status_code) == (200, 400)
    for answer in (good, bad):
        assert answer.headers.get_list("x-request-id") == [answered]
        assert answer.json()["request_id"] == answered


async def test_replica_does_not_start_if_its_model_cannot_be_opened(
    build_app: Callable[[], FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DECODER_BUNDLE", "nowhere")
    app = build_app()
    with pytest.raises(BundleError):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")
