"""Tests of the served pipeline: loading, ready, failed, draining."""

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

from service.bundle.reader import Bundle
from service.engine.heads import Embeddings
from service.errors import BundleError, Draining, NotReady, StartError, StoreUnavailable
from service.labels.catalogue import Catalogue
from service.labels.definition import Definition
from service.labels.registered_sets import RegisteredSets
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.pipeline.served import ServedPipeline
from service.question import Question
from service.settings import Settings
from tests.support.label_store import FlakyStore, put
from tests.support.serving import PHOTO
from tests.support.threads import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tiny_bundle: Bundle) -> Settings:
    return Settings(bundle=tiny_bundle.path, device="cpu")


async def test_pipeline_is_ready_from_loaded_until_it_drains(settings: Settings) -> None:
    served = ServedPipeline(settings)
    ready: list[str] = []
    served.others_ready = lambda: bool(ready)
    with pytest.raises(NotReady, match="the pipeline is loading"):
        served.check_ready()
    await served.open()
    opened = served.opened
    with pytest.raises(NotReady, match="other workers are loading"):
        served.check_ready()
    ready.append("all")
    served.check_ready()
    await served.open()
    assert served.pipeline is served.opened is opened  # once only
    for _ in range(2):
        await served.drain()
        assert served.opened is opened
        assert (served.ready, served.opened.state) == (False, "draining")
        with pytest.raises(Draining):
            served.check_ready()


async def test_not_ready_says_how_many_label_sets_are_encoded_for_another_model(
    open_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        bundle=open_bundle.path, device="cpu", label_store=str(tmp_path / "labels.db")
    )
    old = FlakyStore(str(settings.label_store), space="0" * 64)
    for name in ("cars", "pets"):
        put(old, name, "a", width=3)
    old.close()
    details: list[str | None] = []

    def open_watched(settings: Settings) -> Pipeline:
        pipeline = open_pipeline(settings)
        encoders = pipeline.catalogue.encoders
        embed = encoders.embed

        async def watch(definition: Definition) -> Embeddings:
            with pytest.raises(NotReady) as refused:
                served.check_ready()
            details.append(refused.value.detail)
            return await embed(definition)

        monkeypatch.setattr(encoders, "embed", watch)
        return pipeline

    served = ServedPipeline(settings, open_watched)
    await served.open()
    served.check_ready()
    words = "Label sets are encoded for this model: {} of 2 are done."
    assert details[-2:] == [words.format(0), words.format(1)]
    assert {"cars", "pets"} <= {labels.name for labels in served.pipeline.catalogue.list_sets()}
    await served.drain()


@pytest.mark.parametrize(
    "reason", [StartError("no such device"), BundleError("damaged"), ZeroDivisionError("a bug")]
)
async def test_failure_is_the_error_of_opening_and_an_unexpected_one_is_logged(
    settings: Settings, caplog: pytest.LogCaptureFixture, reason: Exception
) -> None:
    def fail(_settings: Settings) -> Pipeline:
        raise reason

    served = ServedPipeline(settings, fail)
    await served.open()
    if isinstance(reason, ZeroDivisionError):
        assert isinstance(served.failure, StartError)
        assert "a bug" in caplog.text
    else:
        assert served.failure is reason
    with pytest.raises(NotReady):
        served.check_ready()


async def test_reload_replaces_the_pipeline_and_frees_it(open_bundle: Bundle) -> None:
    served = ServedPipeline(Settings(bundle=open_bundle.path, device="cpu", label_store="memory"))
    await served.open()
    earlier = weakref.ref(served.pipeline)
    assert await served.reload()
    assert earlier() is not served.pipeline
    assert earlier().state == "ready"  # type: ignore[union-attr]  # for requests that have begun
    await served.close_earlier()
    # Its threads end.
    await asyncio.to_thread(wait_until, lambda: gc.collect() >= 0 and earlier() is None)
    await served.pipeline.predict(PHOTO, await served.pipeline.select(Question()))
    await served.drain()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ((Catalogue, "start"), BundleError("damaged")),
        ((Catalogue, "start"), MemoryError()),
        ((RegisteredSets, "hand_over"), StoreUnavailable("away")),
        ((RegisteredSets, "hand_over"), Draining("stopping")),
    ],
)
async def test_failed_reload_keeps_the_pipeline(
    open_bundle: Bundle,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[type, str],
    reason: Exception,
) -> None:
    async def fail(*_: object) -> None:
        served.draining = isinstance(reason, Draining)
        raise reason

    served = ServedPipeline(Settings(bundle=open_bundle.path, device="cpu", label_store="memory"))
    await served.open()
    before = served.opened
    monkeypatch.setattr(*step, fail)
    assert not await served.reload()
    assert served.opened is before
    says_reason = (
        f": {str(reason) or 'MemoryError'}: correct it and send SIGHUP again" in caplog.text
    )
    assert says_reason == served.ready != served.draining
    served.draining = False
    await served.drain()
