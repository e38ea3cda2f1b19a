"""Shared by the tests of the pipeline: a running pipeline, and a observer that records calls."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from service.bundle.reader import Bundle
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.settings import Settings
from service.stages import Stage


def make_settings(bundle: Bundle, **values: Any) -> Settings:
    defaults: dict[str, Any] = {
        **{"device": "cpu", "label_store": "memory"},
        **{"intra_op_threads": 2, "decode_threads": 2},
    }
    return Settings(bundle=bundle.path, **(defaults | values))


@asynccontextmanager
async def running(bundle: Bundle, **values: Any) -> AsyncIterator[Pipeline]:
    pipeline = open_pipeline(make_settings(bundle, **values))
    await pipeline.start()
    try:
        yield pipeline
    finally:
        await pipeline.drain()


class Recorder:
    """A observer that notes batch sizes, and the names of each photo's stages."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.predictions: list[list[str]] = []

    def on_batch(self, size: int, seconds: float) -> None:
        assert seconds > 0
        self.batches.append(size)

    def on_prediction(self, stages: Sequence[Stage], batch_size: int) -> None:
        assert batch_size in self.batches
        assert all(a.ended <= b.started for a, b in pairwise(stages))
        self.predictions.append([stage.name for stage in stages])
