"""A replica of Ray Serve lives as the service does; Ray itself is not needed for that."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from service.bundle import Bundle
from service.errors import BundleError
from service.http import exposition
from service.http.hosting import PipelineHost
from service.http.metrics import Metrics

pytestmark = pytest.mark.anyio


class FakeServe(ModuleType):
    """What `service/ray_app.py` takes of Ray, which only wraps what it is given."""

    @staticmethod
    def ingress(_build: Callable[[], FastAPI]) -> Callable[[type], type]:
        return lambda replica: replica

    @staticmethod
    def deployment(_replica: type, name: str) -> Any:
        return SimpleNamespace(bind=lambda: name)


@pytest.fixture
def build_app(
    monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle
) -> Iterator[Callable[[], FastAPI]]:
    ray = ModuleType("ray")
    ray.serve = FakeServe("ray.serve")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delitem(sys.modules, "service.ray_app", raising=False)
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(tiny_bundle.path))
    monkeypatch.setenv("ML_DECODER_LABEL_STORE", "memory")
    monkeypatch.setenv("ML_DECODER_DEVICE", "cpu")
    yield importlib.import_module("service.ray_app").build_app
    sys.modules.pop("service.ray_app", None)


async def test_replica_has_started_when_its_model_is_open(
    build_app: Callable[[], FastAPI],
) -> None:
    app = build_app()
    async with app.router.lifespan_context(app):
        assert app.state.host.ready
    assert not app.state.host.ready


async def test_replica_samples_what_its_metrics_tell_of_now(
    build_app: Callable[[], FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "SAMPLE_SECONDS", 0)
    app = build_app()
    metrics, sampled = app.state.metrics, asyncio.Event()

    def sample(host: PipelineHost) -> None:
        Metrics.sample(metrics, host)
        if host.ready:
            sampled.set()

    monkeypatch.setattr(metrics, "sample", sample)
    async with asyncio.timeout(10), app.router.lifespan_context(app):
        await sampled.wait()
        assert metrics.registry.get_sample_value("ml_decoder_ready") == 1


async def test_replica_whose_model_cannot_be_opened_does_not_start(
    build_app: Callable[[], FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DECODER_BUNDLE", "nowhere")
    app = build_app()
    with pytest.raises(BundleError):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")
